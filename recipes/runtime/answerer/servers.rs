//! Answers of several servers that have one model.

use std::sync::OnceLock;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use spectrain_data::regenerate::{Answer, Answers, Failure, Request};

use super::server::{Server, ServerSettings};
use crate::runtime::server::client::Client;
use crate::runtime::server::pool::Pool;
use crate::runtime::server::waiting::Waiting;

/// Servers of one model, at least one.
pub struct Servers {
    servers: Vec<Server>,
    /// What came of the question for each one's model, where it was asked.
    models: Vec<OnceLock<Result<(), String>>>,
    pool: Pool,
}

impl Servers {
    /// Checks the addresses, waits until somebody is at one of them and, if no model is named, asks who is there which one it has;
    /// who comes later is asked then. Each server gets so many requests at a time.
    ///
    /// # Errors
    /// An address is none, nobody is there, or servers have different models.
    pub fn connect(
        settings: Vec<ServerSettings>,
        concurrency: u16,
        waiting: Waiting,
    ) -> Result<Self> {
        let clients = settings.iter().map(ServerSettings::client);
        let clients = clients.collect::<Result<Vec<_>>>()?;
        let all: Vec<&Client> = clients.iter().collect();
        let found = waiting.until_there(&all, 1)?;
        let mut model: Option<(String, &str)> = None;
        let models: Vec<OnceLock<_>> = clients.iter().map(|_| OnceLock::new()).collect();
        for (((settings, client), found), asked) in
            settings.iter().zip(&clients).zip(&found).zip(&models)
        {
            if found.is_err() {
                continue;
            }
            let other = settings.model(client)?;
            match &model {
                Some((model, at)) if *model != other => bail!(
                    "`{}`: expected servers of one model, found `{model}` at `{at}` and `{other}` at `{}`; vLLM and SGLang have the \
                     option `--served-model-name`",
                    settings.named_by[0],
                    client.root()
                ),
                _ => model = Some((other, client.root())),
            }
            let _ = asked.set(Ok(()));
        }
        let Some((model, _)) = model else {
            let silent = found.into_iter().filter_map(Result::err);
            let silent: Vec<String> = silent.map(|silent| silent.to_string()).collect();
            bail!("{}{}", silent.join("; "), waiting.in_vain());
        };
        let pool = Pool::new(settings.len(), concurrency.into(), waiting);
        let servers = clients.into_iter().zip(settings);
        let servers = servers.map(|(client, settings)| Server::of(client, settings, model.clone()));
        Ok(Self {
            servers: servers.collect(),
            models,
            pool,
        })
    }

    /// Who of them is asked.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Asks a server that was not there at the start for its model, once.
    fn check_model(&self, number: usize) -> Result<(), Failure> {
        let (asked, server) = (&self.models[number], &self.servers[number]);
        if asked.get().is_none() {
            let found = server.check_model()?;
            if asked.set(found.clone()).is_ok()
                && let Err(reason) = &found
            {
                let root = server.client().root();
                self.pool.leave_out(number, &format!("`{root}`: {reason}"));
            }
        }
        let found = asked.get().cloned().unwrap_or(Ok(()));
        found.map_err(|reason| Failure::Lasting { reason })
    }

    /// Everything that the answers depend on.
    pub fn settings(&self) -> Map<String, Value> {
        let Some(server) = self.servers.first() else {
            return Map::new();
        };
        let mut settings = Map::new();
        settings.insert("model".into(), server.model().into());
        settings.extend(server.body().clone());
        settings.insert("seed".into(), json!(server.seed()));
        settings
    }
}

impl Answers for Servers {
    fn answer(&self, request: &Request) -> Result<Answer, Failure> {
        let clients: Vec<&Client> = self.servers.iter().map(Server::client).collect();
        let ask = |server: usize| {
            self.check_model(server)?;
            self.servers[server].answer(request)
        };
        self.pool.ask(request, &clients, &ask)
    }
}
