//! The HTTP of object stores by the client that this program has anyway.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use ureq::http::Request;
use ureq::{Agent, Error};

/// Seconds that a request may take, its body included.
const TIMEOUT: u64 = 300;
/// Bytes of a response, at most: files are fetched in ranges.
const LONGEST_BODY: u64 = 128 << 20;

/// Makes the client.
#[derive(Debug)]
pub(super) struct Connector;

#[derive(Debug)]
struct Service(Agent);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .https_only(allows_http.as_deref() != Some("true"))
            .timeout_global(Some(Duration::from_secs(TIMEOUT)));
        Ok(HttpClient::new(Service(config.build().into())))
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let is_bodyless = ["GET", "HEAD", "DELETE"].contains(&head.method.as_str());
        // Nothing else runs beside it, so that it may wait here.
        let answered = if is_bodyless && body.is_empty() {
            self.0.run(Request::from_parts(head, ()))
        } else {
            self.0.run(Request::from_parts(head, &body[..]))
        };
        let (head, mut body) = answered.map_err(failed)?.into_parts();
        let bytes = body.with_config().limit(LONGEST_BODY).read_to_vec();
        Ok(HttpResponse::from_parts(
            head,
            bytes.map_err(failed)?.into(),
        ))
    }
}

/// Which failures are worth another try is for the store to know.
fn failed(error: Error) -> HttpError {
    let kind = match &error {
        Error::Timeout(_) => HttpErrorKind::Timeout,
        Error::ConnectionFailed | Error::HostNotFound => HttpErrorKind::Connect,
        Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            HttpErrorKind::Connect
        }
        Error::Io(_) | Error::Protocol(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
