//! Requests to the hub: redirects, the token and its reach, statuses.

use std::io::Read as _;
use std::time::Duration;

use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::request::Builder;
use ureq::http::{HeaderValue, Method, Request, Response};
use ureq::{Agent, Body, SendBody};
use url::Url;

use super::address::{self, Endpoint};
use super::announced::{shown, text};
use super::failure::{Failure, Outcome, Patience, http};
use super::limits::HubLimits;

const USER_AGENT: &str = concat!("spectrain/", env!("CARGO_PKG_VERSION"));

/// Characters from which on a token is looked for in texts; a shorter one would be found in any.
const SHORTEST_TOKEN: usize = 8;

/// The token as a header, which is not printed with others.
pub(super) struct Authorization {
    header: HeaderValue,
    token: String,
}

impl Authorization {
    pub(super) fn bearer(token: &str) -> Result<Self, String> {
        let header = HeaderValue::from_str(&format!("Bearer {token}"));
        // The reason is not passed on: it might one day repeat the token.
        let mut header = header.map_err(|_| {
            "the access token has characters that no token has: check `HF_TOKEN`, or log in again"
                .to_string()
        })?;
        header.set_sensitive(true);
        Ok(Authorization {
            header,
            token: token.to_string(),
        })
    }

    /// A text without the token, which a server may send back.
    fn hide(&self, text: &str) -> String {
        if self.token.len() < SHORTEST_TOKEN {
            return text.to_string();
        }
        text.replace(&self.token, "…")
    }
}

/// One hub, and what is put up with from it.
pub(super) struct Client {
    agent: Agent,
    endpoint: Endpoint,
    authorization: Option<Authorization>,
    limits: HubLimits,
}

impl Client {
    pub(super) fn new(
        endpoint: Endpoint,
        authorization: Option<Authorization>,
        limits: HubLimits,
    ) -> Self {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // Followed here, where each is looked at.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(USER_AGENT)
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_recv_response(Some(limits.answer))
            .timeout_per_read(Some(limits.silence))
            .timeout_per_write(Some(limits.silence));
        if endpoint.is_loopback() {
            config = config.proxy(None);
        }
        Client {
            agent: config.build().into(),
            endpoint,
            authorization,
            limits,
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn limits(&self) -> &HubLimits {
        &self.limits
    }

    pub(super) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// A text of a server, or about one, without the token.
    pub(super) fn hide(&self, text: &str) -> String {
        match &self.authorization {
            Some(authorization) => authorization.hide(text),
            None => text.to_string(),
        }
    }

    /// What the hub itself says of an address: a redirect to another host is its answer.
    pub(super) fn head(&self, url: &Url, patience: &mut Patience<'_>) -> Outcome<Response<Body>> {
        loop {
            match self.follow(&Method::HEAD, url, 0) {
                Ok(response) => {
                    patience.progressed();
                    return Ok(response);
                }
                Err(failure) => patience.after(failure)?,
            }
        }
    }

    /// A file from a byte on, wherever the hub has it. One attempt. Statuses: 200, 206, or 416 for a byte too far.
    pub(super) fn get(&self, url: &Url, first: u64) -> Outcome<Response<Body>> {
        self.follow(&Method::GET, url, first)
    }

    /// What the hub says about something, of at most `most` bytes of text.
    pub(super) fn text(
        &self,
        url: &Url,
        most: u64,
        patience: &mut Patience<'_>,
    ) -> Outcome<String> {
        loop {
            let read = self.follow(&Method::GET, url, 0).and_then(|response| {
                let mut text = Vec::new();
                let mut body = response.into_body().into_reader().take(most + 1);
                let read = body.read_to_end(&mut text);
                read.map_err(|error| Failure::Broken(shown(&error.to_string())))?;
                if text.len() as u64 > most {
                    let reason = format!("expected an answer of at most {most} bytes, found more");
                    return Err(Failure::Lasting(reason));
                }
                let text = String::from_utf8(text);
                text.map_err(|_| {
                    Failure::Lasting("the hub's answer is not text in UTF-8".to_string())
                })
            });
            match read {
                Ok(text) => return Ok(text),
                Err(failure) => patience.after(failure)?,
            }
        }
    }

    fn follow(&self, method: &Method, url: &Url, first: u64) -> Outcome<Response<Body>> {
        let mut url = url.clone();
        for _ in 0..=self.limits.redirects {
            let response = self.send(method, &url, first)?;
            let status = response.status();
            if !status.is_redirection() {
                return self.accept(response, first);
            }
            let host = address::shown(&url);
            let location = response.headers().get(LOCATION);
            let Some(location) = location.and_then(|value| value.to_str().ok()) else {
                let status = status.as_u16();
                return Err(Failure::Lasting(format!(
                    "`{host}` redirects (http {status}) without a `Location`"
                )));
            };
            let next = address::redirected(&url, location)
                .map_err(|reason| format!("`{host}` {reason}"))?;
            if *method == Method::HEAD && !self.endpoint.owns(&next) {
                return Ok(response);
            }
            url = next;
        }
        Err(Failure::Lasting(format!(
            "more than {} redirects",
            self.limits.redirects
        )))
    }

    /// A request with the token, if it is to the hub itself.
    pub(super) fn authorised(&self, request: Builder, url: &Url) -> Builder {
        match &self.authorization {
            Some(authorization) if self.endpoint.owns(url) => {
                request.header(AUTHORIZATION, &authorization.header)
            }
            _ => request,
        }
    }

    /// Sends a request that changes something. Statuses: 2xx, and 409 for what is there already. One attempt, no redirects.
    pub(super) fn exchange(
        &self,
        request: Request<SendBody<'_>>,
        url: &Url,
    ) -> Outcome<Response<Body>> {
        let response = self.agent.run(request);
        let response = response.map_err(|error| self.of_transport(error, url))?;
        match response.status().as_u16() {
            200..=299 | 409 => Ok(response),
            _ => self.accept(response, 0),
        }
    }

    fn send(&self, method: &Method, url: &Url, first: u64) -> Outcome<Response<Body>> {
        let mut request = Request::builder()
            .method(method)
            .uri(url.as_str())
            // Lengths and digests are those of the file as it is.
            .header(ACCEPT_ENCODING, "identity");
        if first > 0 {
            request = request.header(RANGE, format!("bytes={first}-"));
        }
        let request = self
            .authorised(request, url)
            .body(())
            .map_err(|error| shown(&error.to_string()))?;
        let answer = self.agent.run(request);
        answer.map_err(|error| self.of_transport(error, url))
    }

    fn of_transport(&self, error: ureq::Error, url: &Url) -> Failure {
        match Failure::of_transport(error) {
            Failure::Unreachable(reason) if !self.endpoint.owns(url) => {
                let host = address::shown(url);
                Failure::Unreachable(format!(
                    "it redirects to `{host}`, which cannot be reached: {reason}"
                ))
            }
            failure => failure,
        }
    }

    /// An answer with a file, or with what is known of it.
    fn accept(&self, response: Response<Body>, first: u64) -> Outcome<Response<Body>> {
        let headers = response.headers();
        let said = text(headers, "x-error-message");
        let said = said.map(|message| shown(&self.hide(message)));
        let code = response.status().as_u16();
        let reason = http(code, said.as_deref());
        match code {
            200 => Ok(response),
            206 | 416 if first > 0 => Ok(response),
            401..=403 => Err(Failure::Refused { status: code, said }),
            404 => Err(Failure::Missing(match text(headers, "x-error-code") {
                Some("RepoNotFound") => NO_REPOSITORY,
                Some("RevisionNotFound") => NO_REVISION,
                Some("EntryNotFound") => NO_FILE,
                _ => "not found (http 404)",
            })),
            408 | 425 | 429 | 500..=599 => Err(Failure::Passing {
                reason,
                pause: headers.get(RETRY_AFTER).and_then(seconds),
            }),
            _ => Err(Failure::Lasting(reason)),
        }
    }
}

/// The hub has nothing of this name.
pub(super) const NO_REPOSITORY: &str = "no such repository";
/// The hub has the repository, but no such revision of it.
pub(super) const NO_REVISION: &str = "no such revision";
/// The hub has the revision, but no such file in it.
pub(super) const NO_FILE: &str = "no such file";

/// The seconds of a `Retry-After`; its other form, a date, is not read.
fn seconds(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_no_header_can_hold_is_not_repeated() {
        let reason = Authorization::bearer("hf_secret\nx").err().unwrap();
        assert!(!reason.contains("secret"), "{reason}");
        let authorization = Authorization::bearer("hf_secret").unwrap();
        assert!(!format!("{:?}", authorization.header).contains("secret"));
        assert_eq!(authorization.hide("got `hf_secret`"), "got `…`");
        assert_eq!(Authorization::bearer("x").unwrap().hide("xyz"), "xyz");
    }
}
