//! How the hub is reached and where its files are kept, by the environment; and what a failure is called.

use super::address::Endpoint;
use super::announced::shown;
use super::client::{Authorization, Client};
use super::environment::Environment;
use super::failure::Failure;
use super::options::HubOptions;
use super::repository::Repository;
use super::repository_cache::RepositoryCache;
use crate::error::{Error, Result};

/// The place of a repository in the cache.
pub(super) fn cache(
    environment: &Environment,
    options: &HubOptions,
    repository: &Repository,
) -> Result<RepositoryCache> {
    let cache = environment.cache(options);
    let cache = cache.ok_or_else(|| Error::HubRequest {
        model: repository.id().to_string(),
        reason: "there is no home folder to keep downloads in: set `HF_HOME` to a folder for them"
            .to_string(),
    })?;
    Ok(RepositoryCache::new(&cache, repository))
}

/// The hub, unless nothing may be asked of it.
pub(super) fn client(environment: &Environment, options: &HubOptions, id: &str) -> Result<Client> {
    let refused = |reason: String| Error::HubRequest {
        model: id.to_string(),
        reason,
    };
    let endpoint = Endpoint::parse(&environment.endpoint(options)).map_err(refused)?;
    if environment.is_offline() {
        return Err(Error::Unreachable {
            model: id.to_string(),
            endpoint: endpoint.to_string(),
            reason: "`HF_HUB_OFFLINE` is set".to_string(),
        });
    }
    let token = environment.token(options, environment.cache(options).as_ref());
    let authorization = token.as_deref().map(Authorization::bearer).transpose();
    let authorization = authorization.map_err(refused)?;
    Ok(Client::new(endpoint, authorization, options.limits.clone()))
}

/// The error that a failure to get `what` of a repository is.
pub(super) fn explain(
    client: &Client,
    repository: &Repository,
    what: &str,
    failure: Failure,
) -> Error {
    let model = repository.id().to_string();
    let endpoint = client.endpoint().to_string();
    match failure {
        Failure::Local(error) => error,
        Failure::Unreachable(reason) | Failure::Broken(reason) => Error::Unreachable {
            model,
            endpoint,
            reason: client.hide(&reason),
        },
        Failure::Lasting(reason)
        | Failure::ThrownAway(reason)
        | Failure::Passing { reason, .. } => failed(client, repository, what, &reason),
        Failure::Interrupted => Error::Interrupted {
            model,
            file: what.to_string(),
        },
        Failure::Missing(reason) => Error::NotOnHub {
            model,
            endpoint,
            revision: repository.revision().to_string(),
            file: what.to_string(),
            reason: reason.to_string(),
        },
        Failure::Refused { status, said } => {
            let has_token = client.has_token();
            let said = said.map_or_else(String::new, |said| format!("the hub says `{said}`; "));
            Error::Refused {
                model,
                endpoint,
                status,
                token: if has_token {
                    "with a token"
                } else {
                    "without a token"
                },
                reason: format!("{said}{}", advice(status, has_token)),
            }
        }
    }
}

/// What to do where the hub refuses to hand something out.
fn advice(status: u16, has_token: bool) -> &'static str {
    match (status, has_token) {
        (401, true) => INVALID_TOKEN,
        (402, _) => BEYOND_PLAN,
        (_, true) => {
            "it is private or gated; accept its terms on its page and set `HF_TOKEN` to a token that may read it"
        }
        (_, false) => {
            "it is private, gated or does not exist; accept its terms on its page and set `HF_TOKEN` to a token \
             that may read it"
        }
    }
}

/// What to do where the hub does not know who asks.
pub(super) const INVALID_TOKEN: &str =
    "the token may be invalid or have expired: check `HF_TOKEN`, or log in again";
/// Why the hub wants to be paid.
pub(super) const BEYOND_PLAN: &str = "the plan of the repository's owner does not allow that";

/// That `what` of a repository cannot be had.
pub(super) fn failed(client: &Client, repository: &Repository, what: &str, reason: &str) -> Error {
    Error::Download {
        model: repository.id().to_string(),
        file: shown(what),
        reason: client.hide(reason),
    }
}
