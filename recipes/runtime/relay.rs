//! A relay beside a server of hidden states: it sends the files that the server writes to trainers on other machines.
//!
//! A trainer speaks to it as to the server. Each response that names a file also has, as `kv_transfer_params.relayed`, the path
//! at which the relay hands out the contents, once; the file is deleted then. That path has 128 random bits, so that only who
//! asked for hidden states can fetch them.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use spectrain_data::regenerate::Failure;
use tokio::net::TcpListener;
use tokio_util::io::ReaderStream;

use crate::progress::Output;
use crate::runtime::capture::file::{Named, Received, SharedFolder};
use crate::runtime::interruption::interrupted;
use crate::runtime::server::client::{Client, JSON, Passed, Unanswered, passing};

/// The option that names the folder of the server.
pub const FOLDER: &str = "--folder";
/// The options that errors about files name.
pub const NAMED: Named = Named {
    folder: "--local-folder",
    timeout: "--timeout",
};
/// Bytes of a request, at most: one with a hundred thousand tokens is shorter.
const LONGEST_REQUEST: usize = 32 << 20;
/// Requests at a time; others wait.
const UNDER_WAY: usize = 1024;
/// Bytes of a file in memory at a time.
const CHUNK: usize = 1 << 20;
/// How often it is looked whether the user asked to stop, and which files nobody fetched.
const TICK: Duration = Duration::from_millis(200);
/// How often the user is told what was sent.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What it stands between.
pub struct Relay {
    server: Client,
    folder: SharedFolder,
    /// The longest that a request, and then its file, may take, and that a file waits to be fetched.
    timeout: Duration,
    received: Received,
    waiting: Mutex<HashMap<String, Waiting>>,
    sent: Sent,
}

/// A file that a trainer was told of.
struct Waiting {
    file: PathBuf,
    since: Instant,
}

/// What trainers have fetched.
#[derive(Default)]
struct Sent {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Relay {
    /// Of a server that writes into this folder.
    pub fn new(server: Client, folder: SharedFolder, timeout: Duration) -> Self {
        Self {
            server,
            folder,
            timeout,
            received: Received::none(NAMED),
            waiting: Mutex::default(),
            sent: Sent::default(),
        }
    }

    /// Serves trainers until the user asks to stop. Files that nobody has fetched then are deleted.
    ///
    /// # Errors
    /// No threads can be started, or no connections accepted.
    pub fn serve(self, listener: std::net::TcpListener, output: Output) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(UNDER_WAY)
            .enable_all()
            .build()
            .context("cannot start the relay's threads")?;
        let relay = Arc::new(self);
        let ended = runtime.block_on(async {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            let served = axum::serve(listener, relay.clone().routes());
            tokio::select! {
                ended = served.into_future() => ended,
                () = relay.clone().watch(output) => Ok(()),
            }
        });
        // Requests to the server that are under way are not waited for.
        runtime.shutdown_background();
        relay.give_up(|_| true);
        ended.context("cannot accept connections")
    }

    fn routes(self: Arc<Self>) -> Router {
        Router::new()
            .route("/v1/models", get(models))
            .route("/v1/completions", post(completion))
            .route("/states/{token}", get(states))
            .layer(DefaultBodyLimit::max(LONGEST_REQUEST))
            .with_state(self)
    }

    /// Deletes what nobody fetched, and tells of what was sent, until the user asks to stop.
    async fn watch(self: Arc<Self>, output: Output) {
        let (mut told, mut files) = (Instant::now(), 0);
        while !interrupted() {
            tokio::time::sleep(TICK).await;
            self.give_up(|waiting| waiting.since.elapsed() > self.timeout);
            let sent = self.sent.files.load(Ordering::Relaxed);
            if sent > files && told.elapsed() > TELL_EVERY {
                output.say(format!(
                    "relay: sent {sent} files of hidden states, {} MiB; {} wait to be fetched",
                    self.sent.bytes.load(Ordering::Relaxed) >> 20,
                    self.waiting().len()
                ));
                (told, files) = (Instant::now(), sent);
            }
        }
    }

    fn give_up(&self, is_over: impl Fn(&Waiting) -> bool) {
        let over: Vec<Waiting> = {
            let mut waiting = self.waiting();
            waiting
                .extract_if(|_, of| is_over(of))
                .map(|(_, of)| of)
                .collect()
        };
        for of in over {
            self.received.give_up(&of.file);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server answers, with where its hidden states can be fetched.
    fn complete(&self, headers: &HeaderMap, body: &[u8]) -> Response {
        let mut passed = match self.pass("/v1/completions", headers, Some(body)) {
            Ok(passed) => passed,
            Err(refusal) => return refusal,
        };
        if passed.status.is_success()
            && let Ok(mut said) = serde_json::from_slice::<Value>(&passed.body)
            && let Some(path) = said["kv_transfer_params"]["hidden_states_path"].as_str()
        {
            let file = match self.folder.file(path, FOLDER) {
                Ok(file) => file,
                // Nothing that another request would not meet.
                Err(error) => return refusal(StatusCode::UNPROCESSABLE_ENTITY, error),
            };
            let token = format!("{:032x}", rand::random::<u128>());
            said["kv_transfer_params"]["relayed"] = json!(format!("/states/{token}"));
            passed.body = said.to_string().into_bytes();
            let since = Instant::now();
            self.waiting().insert(token, Waiting { file, since });
        }
        answer(passed)
    }

    /// The file that a token stands for, and its length. It is gone from the folder then.
    fn open(&self, token: &str) -> std::result::Result<(File, u64), Response> {
        let Some(Waiting { file, .. }) = self.waiting().remove(token) else {
            // The client takes this for a server that was restarted, and asks again.
            let unknown = "the relay knows nothing of these hidden states: it was restarted, or they were fetched before, or not \
                           within the time of `--timeout`";
            return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, unknown));
        };
        let opened = self.received.take(&file, self.timeout, |path| {
            let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
            opened.map_err(|error| passing(format!("cannot read `{}`: {error}", path.display())))
        });
        match opened {
            Ok((length, file)) => {
                self.sent.files.fetch_add(1, Ordering::Relaxed);
                self.sent.bytes.fetch_add(length, Ordering::Relaxed);
                Ok((file, length))
            }
            Err(Failure::Passing { reason, .. }) => {
                Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, reason))
            }
            Err(Failure::Lasting { reason }) => {
                Err(refusal(StatusCode::UNPROCESSABLE_ENTITY, reason))
            }
        }
    }

    /// What the server answers to a trainer's request; where it does not, a gateway's status, by which a trainer knows that
    /// there is no server.
    fn pass(
        &self,
        path: &str,
        headers: &HeaderMap,
        body: Option<&[u8]>,
    ) -> std::result::Result<Passed, Response> {
        let passed = self.server.pass(path, body, headers.get(AUTHORIZATION));
        passed.map_err(|Unanswered { is_late, reason }| {
            let status = if is_late {
                StatusCode::GATEWAY_TIMEOUT
            } else {
                StatusCode::BAD_GATEWAY
            };
            refusal(status, format!("`{}`: {reason}", self.server.root()))
        })
    }
}

async fn models(State(relay): State<Arc<Relay>>, headers: HeaderMap) -> Response {
    aside(move || {
        let passed = relay.pass("/v1/models", &headers, None);
        passed.map_or_else(|refusal| refusal, answer)
    })
    .await
}

async fn completion(State(relay): State<Arc<Relay>>, headers: HeaderMap, body: Bytes) -> Response {
    aside(move || relay.complete(&headers, &body)).await
}

async fn states(State(relay): State<Arc<Relay>>, Path(token): Path<String>) -> Response {
    aside(move || match relay.open(&token) {
        Ok((file, length)) => {
            let file = tokio::fs::File::from_std(file);
            let chunks = ReaderStream::with_capacity(file, CHUNK);
            ([(CONTENT_LENGTH, length)], Body::from_stream(chunks)).into_response()
        }
        Err(refusal) => refusal,
    })
    .await
}

/// Runs what waits for the server or for a file in a thread where it may wait.
async fn aside(work: impl FnOnce() -> Response + Send + 'static) -> Response {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| refusal(StatusCode::INTERNAL_SERVER_ERROR, error))
}

fn answer(passed: Passed) -> Response {
    let mut response = (passed.status, passed.body).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    if let Some(wait) = passed.retry_after {
        headers.insert(RETRY_AFTER, wait);
    }
    response
}

/// A failure, as servers of this protocol tell of one.
fn refusal(status: StatusCode, reason: impl std::fmt::Display) -> Response {
    let said = json!({"error": {"message": reason.to_string()}});
    answer(Passed {
        status,
        retry_after: None,
        body: said.to_string().into_bytes(),
    })
}
