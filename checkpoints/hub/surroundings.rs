//! What the environment says of the hub, and whether the hub answers: for those who look for what is wrong.

use std::path::PathBuf;
use std::time::Duration;

use super::address::Endpoint;
use super::client::Client;
use super::environment::Environment;
use super::failure::{Failure, Patience};
use super::limits::HubLimits;
use super::options::HubOptions;

/// The longest that is waited for each part of an answer.
const WAIT: Duration = Duration::from_secs(10);

/// What the environment says of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The hub's address without what may be secret in it, or what is wrong with it.
    pub endpoint: Result<String, String>,
    /// The folder of snapshots; `None` where nothing says which, not even a home folder.
    pub cache: Option<PathBuf>,
    /// Whether there is an access token.
    pub has_token: bool,
    /// Whether the hub may not be asked.
    pub is_offline: bool,
}

impl Surroundings {
    /// That of this process.
    pub fn of_process(options: &HubOptions) -> Self {
        Self::of(&Environment::of_process(), options)
    }

    fn of(environment: &Environment, options: &HubOptions) -> Self {
        let cache = environment.cache(options);
        let token = environment.token(options, cache.as_ref());
        let endpoint = Endpoint::parse(&environment.endpoint(options));
        Self {
            endpoint: endpoint.map(|endpoint| endpoint.to_string()),
            cache: cache.map(|cache| cache.path().clone()),
            has_token: token.is_some(),
            is_offline: environment.is_offline(),
        }
    }
}

/// Whether the hub answers at all. It is asked once, without a token.
///
/// # Errors
/// Why it does not.
pub fn answers(options: &HubOptions) -> Result<(), String> {
    let endpoint = Endpoint::parse(&Environment::of_process().endpoint(options))?;
    let limits = HubLimits {
        connect: WAIT,
        answer: WAIT,
        silence: WAIT,
        attempts: 1,
        ..HubLimits::default()
    };
    let url = endpoint.url();
    let client = Client::new(endpoint, None, limits.clone());
    match client.head(&url, &mut Patience::new(&limits, options.stop)) {
        // It has nothing to say of its own address, or not to everyone: it is there.
        Ok(_) | Err(Failure::Missing(_) | Failure::Refused { .. }) => Ok(()),
        Err(
            Failure::Unreachable(reason)
            | Failure::Broken(reason)
            | Failure::Passing { reason, .. }
            | Failure::ThrownAway(reason)
            | Failure::Lasting(reason),
        ) => Err(reason),
        Err(Failure::Interrupted) => Err("interrupted".into()),
        Err(Failure::Local(error)) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_in_the_environment_is_not_told() {
        let variables = [
            ("HF_ENDPOINT", "https://me:secret@mirror/hf"),
            ("HF_TOKEN", "hf_secret"),
            ("HF_HUB_OFFLINE", "1"),
        ];
        let environment = Environment::of(std::path::Path::new("/home/me"), &variables);
        let found = Surroundings::of(&environment, &HubOptions::default());
        assert!(!format!("{found:?}").contains("secret"), "{found:?}");
        assert_eq!(found.endpoint.as_deref(), Ok("https://mirror/hf"));
        assert!(found.has_token && found.is_offline);
        let environment = Environment::of(std::path::Path::new("/home/me"), &[]);
        let found = Surroundings::of(&environment, &HubOptions::default());
        assert!(!found.has_token && !found.is_offline);
        assert!(found.cache.unwrap().ends_with(".cache/huggingface/hub"));
    }

    #[test]
    fn a_hub_where_nobody_listens_does_not_answer() {
        let options = HubOptions {
            endpoint: Some("http://127.0.0.1:9".into()),
            ..HubOptions::default()
        };
        assert!(answers(&options).is_err());
    }
}
