//! `spectrain relay`: hidden states for trainers on other machines.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::progress::Output;
use crate::runtime::capture::file::SharedFolder;
use crate::runtime::relay::{NAMED, Relay};
use crate::runtime::server::client::Client;

/// Arguments of `spectrain relay`.
#[derive(Debug, Args)]
pub struct RelayArguments {
    /// The server, which was started with the command that `spectrain recipe FILE --plan` prints
    #[arg(long, value_name = "URL", default_value = "http://localhost:8000")]
    server: String,
    /// The folder into which the server writes hidden states, by its path on the server
    #[arg(long, value_name = "DIR", default_value = "/dev/shm/states")]
    folder: PathBuf,
    /// The path of the same folder here, where it is another
    #[arg(long, value_name = "DIR")]
    local_folder: Option<PathBuf>,
    /// The address and port to listen at
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8100")]
    listen: SocketAddr,
    /// Seconds that a request to the server may take, and that hidden states wait for who asked for them
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// Runs the command, until the user asks to stop.
pub fn run(arguments: &RelayArguments) -> Result<()> {
    let timeout = Duration::from_secs(arguments.timeout);
    let server = Client::new("--server", &arguments.server, None, timeout)?;
    let here = arguments.local_folder.as_ref();
    let folder = SharedFolder {
        here: here.unwrap_or(&arguments.folder).clone(),
        on_server: arguments.folder.clone(),
    };
    let listener = TcpListener::bind(arguments.listen)
        .with_context(|| format!("`--listen`: cannot listen at `{}`", arguments.listen))?;
    let output = Output::detect();
    output.say(format!(
        "relay: listens at http://{} for trainers of the target at `{}`; they name this machine and port in `target.server`",
        listener.local_addr()?,
        server.root()
    ));
    if let Err(silent) = server.is_there() {
        output.say(format!("relay: {silent}; trainers wait for it"));
    }
    if !folder.here.is_dir() {
        output.warn(format!(
            "there is no folder `{}`, as long as the server makes none",
            folder.here.display()
        ));
    }
    if let Some(told) = folder.abandoned(timeout).told(&folder.here, NAMED.timeout) {
        output.warn(told);
    }
    Relay::new(server, folder, timeout).serve(listener, output)
}
