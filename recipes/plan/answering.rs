//! Whether anybody is at the addresses of the servers that are to answer conversations anew.

use std::thread;
use std::time::Duration;

use super::capture::joined;
use super::stages::Planned;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::stage_names;
use crate::runtime::server::client::Client;

const KEY: &str = "regenerate.server";
/// The longest that an address is asked: longer than a machine may take to accept a connection.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What is said of each server at whose address nobody is, where the stage that asks it is left to run. All are asked at once.
pub(super) fn silent(recipe: &ResolvedRecipe, stages: &[Planned]) -> Vec<String> {
    let table = recipe.regenerate.as_ref();
    let Some((table, servers)) = table.and_then(|table| Some((table, table.server.as_ref()?)))
    else {
        return Vec::new();
    };
    let mut stages = stages.iter();
    if !stages.any(|stage| stage.name == stage_names::REGENERATE && stage.is_left()) {
        return Vec::new();
    }
    let waits = match table.wait {
        0 => "the run waits for nobody (`regenerate.wait`)".to_owned(),
        longest => format!("the run waits for one, for at most {longest} s (`regenerate.wait`)"),
    };
    let ask = |url: &str| {
        // What is no address is refused.
        let client = Client::new(KEY, url, None, TIMEOUT).ok()?;
        let silent = client.is_there().err()?;
        Some(format!("`{KEY}`: {silent}; {waits}"))
    };
    let ask = &ask;
    thread::scope(|scope| {
        let asked = servers.each().iter();
        let asked: Vec<_> = asked.map(|url| scope.spawn(move || ask(url))).collect();
        asked.into_iter().filter_map(joined).collect()
    })
}
