//! The commands that serve an exported drafter, for the engines that were asked for.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value};
use spectrain_checkpoints::launch::{Launch, Server, quote};

use crate::families::family::Writing;
use crate::families::trained::Trained;
use crate::recipe::inline::assigned;
use crate::recipe::tables::Engine;
use crate::runtime::target::variables_of;

/// What there is in place of an engine.
const INSTEAD: &str = "this program decodes with the drafter's own folder: `spectrain generate`, `spectrain evaluate`";

/// Fails for an engine that does not load a drafter.
pub(crate) fn check(drafter: &dyn Trained, engine_asked: Engine, writing: &Writing) -> Result<()> {
    let all = drafter.launch_lines(engine_asked, writing)?;
    let servers: Vec<Engine> = all
        .iter()
        .filter_map(|line| line.server.map(Engine::of))
        .collect();
    if servers.contains(&engine_asked) {
        return Ok(());
    }
    if servers.is_empty() {
        bail!(
            "no serving engine loads {} drafters like this one; {INSTEAD}",
            drafter.kind()
        );
    }
    let mut names: Vec<&str> = servers.iter().map(|engine| engine.name()).collect();
    names.dedup();
    let against = drafter.against(engine_asked)?;
    let why = match &against[..] {
        [] => String::new(),
        keys => format!(", because of {}", assigned(keys)),
    };
    bail!(
        "{} is not known to load {} drafters like this one{why}; these do: {}",
        engine_asked.name(),
        drafter.kind(),
        names.join(", ")
    )
}

/// The commands for these engines, and what there is to remark on.
pub(crate) fn commands(
    drafter: &dyn Trained,
    engines: &[Engine],
    writing: &Writing,
) -> Result<Vec<String>> {
    // They share the folder.
    let all = drafter.launch_lines(engines[0], writing)?;
    Ok(told(&all, engines, writing.folder, writing.provenance))
}

/// The lines of `all` that are for these engines, and what there is to remark on.
pub(crate) fn told(
    all: &[Launch],
    engines: &[Engine],
    folder: &Path,
    provenance: &Value,
) -> Vec<String> {
    let for_one = |line: &&Launch| {
        line.server
            .is_none_or(|server| engines.contains(&Engine::of(server)))
    };
    let mut lines: Vec<&Launch> = all.iter().filter(for_one).collect();
    // A remark is about the lines behind it, if any line is left.
    while lines.iter().any(|line| line.server.is_some())
        && lines.last().is_some_and(|line| line.server.is_none())
    {
        lines.pop();
    }
    let misled = lines
        .iter()
        .filter_map(|line| misleading(line.server?, folder));
    let served = |asked: &Engine| {
        lines
            .iter()
            .any(|line| line.server.map(Engine::of) == Some(*asked))
    };
    // What no engine loads has a remark of its own, or no line at all.
    let unloaded = all.is_empty().then(|| {
        let said = format!("no serving engine is known to load this drafter; {INSTEAD}");
        Launch::remark(&said)
    });
    let is_served = all.iter().any(|line| line.server.is_some());
    let unserved = engines
        .iter()
        .filter(|asked| is_served && !served(asked))
        .map(|asked| {
            Launch::remark(&format!(
                "no command for {}, which is not known to load this drafter",
                asked.name()
            ))
        });
    let served_with = variables_of(provenance).and_then(template_variables);
    let revision = provenance["recipe"]["target"]["revision"].as_str();
    let revision = revision
        .filter(|_| lines.iter().any(takes_revision))
        .map(of_revision);
    let remarks = misled.chain(unserved).chain(unloaded).chain(revision);
    let remarks = remarks.map(|remark| remark.text);
    let texts = lines.iter().map(|line| line.text.clone());
    let chosen = chosen(&lines).into_iter().map(|remark| remark.text);
    let served_with = served_with.map(|remark| remark.text);
    remarks
        .chain(texts)
        .chain(chosen)
        .chain(served_with)
        .collect()
}

/// What the engines of these commands draft above temperature 0, each once.
fn chosen(lines: &[&Launch]) -> Vec<Launch> {
    let of_line = |line: &&Launch| Some((Engine::of(line.server?), line.choosing?));
    let mut remarks: Vec<Launch> = Vec::new();
    for (engine, choosing) in lines.iter().filter_map(of_line) {
        let name = match engine {
            Engine::Speculators => Engine::Vllm.name(),
            engine => engine.name(),
        };
        let remark = Launch::remark(&format!("above temperature 0 {name} drafts {choosing}"));
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    }
    remarks
}

/// What requests must have for the target to be asked as in training.
fn template_variables(variables: &Map<String, Value>) -> Option<Launch> {
    let shown = Value::Object(variables.clone());
    (!variables.is_empty()).then(|| {
        Launch::remark(&format!(
            "send requests with \"chat_template_kwargs\": {shown}: the drafter was trained with these"
        ))
    })
}

/// Whether a command is of a server that loads the target by its name on the hub.
fn takes_revision(line: &&Launch) -> bool {
    let of_hub = |server| {
        matches!(
            server,
            Server::Vllm(_) | Server::Speculators | Server::Sglang(_)
        )
    };
    line.server.is_some_and(of_hub)
}

/// The commands name no revision, so servers would load the hub's main branch, whose weights may differ.
fn of_revision(revision: &str) -> Launch {
    let revision = quote(revision);
    Launch::remark(&format!(
        "add `--revision {revision}` for vLLM and SGLang: the drafter was trained for this revision of the target, and they load the \
         main branch"
    ))
}

/// Words in a path that turn vLLM to another method than the one that it is told, in the order in which it looks.
const TELLTALES: [&str; 4] = ["eagle-", "eagle3", "dflash", "dspark"];
/// Methods that it turns from.
const TURNED: [&str; 2] = ["draft_model", "medusa"];

fn misleading(server: Server, folder: &Path) -> Option<Launch> {
    let Server::Vllm(method) = server else {
        return None;
    };
    let path = folder.display().to_string().to_lowercase();
    let word = TELLTALES.iter().find(|word| path.contains(**word))?;
    TURNED.contains(&method).then(|| {
        Launch::remark(&format!(
            "vLLM takes a folder whose path has `{word}` in it for another kind of drafter than `{method}`: serve it from \
             another path"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use spectrain_checkpoints::language_model;

    #[test]
    fn what_engines_draft_above_temperature_0_is_said_once_with_the_flag_that_changes_it() {
        let lines = language_model::launch_lines(Path::new("d"), "t", 3);
        let both: Vec<&Launch> = lines.iter().chain(&lines).collect();
        let texts: Vec<String> = chosen(&both).into_iter().map(|found| found.text).collect();
        assert_eq!(
            texts,
            [
                "# above temperature 0 vLLM drafts the likeliest tokens (`likeliest` in reports), and drawn ones (`drawn`) \
                 with `\"draft_sample_method\": \"probabilistic\"` in `--speculative-config`",
                "# above temperature 0 SGLang drafts the likeliest tokens (`likeliest` in reports)",
            ]
        );
    }

    #[test]
    fn a_path_that_misleads_vllm_is_remarked_upon() {
        let remark = |server, path: &str| misleading(server, Path::new(path));
        let model = Server::Vllm("draft_model");
        let found = remark(model, "runs/my-DFlash-run/drafter").unwrap();
        assert!(found.text.contains("`dflash`") && found.server.is_none());
        assert!(remark(Server::Vllm("medusa"), "runs/eagle-3/drafter").is_some());
        assert_eq!(remark(model, "runs/pard/drafter"), None);
        // It believes what it is told of these.
        assert_eq!(remark(Server::Vllm("eagle3"), "runs/eagle-3/drafter"), None);
        assert_eq!(remark(Server::Vllm("dspark"), "runs/dflash/drafter"), None);
        let sglang = Server::Sglang("EAGLE");
        assert_eq!(remark(sglang, "runs/eagle-3/drafter"), None);
    }

    #[test]
    fn a_drafter_without_any_line_is_remarked_upon_and_one_with_a_remark_has_no_other() {
        let engines = [Engine::Sglang, Engine::Vllm];
        let lines = |all: &[Launch]| told(all, &engines, Path::new("d"), &Value::Null);
        let found = lines(&[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("# no serving engine"), "{found:?}");
        assert!(found[0].contains("`spectrain generate`"), "{found:?}");
        let own = Launch::remark("nobody loads it");
        assert_eq!(lines(std::slice::from_ref(&own)), [own.text]);
    }

    #[test]
    fn the_revision_of_the_target_is_said_beside_commands() {
        let all = language_model::launch_lines(Path::new("d"), "o/n", 3);
        let of = |target: Value| {
            let provenance = json!({"recipe": {"target": target}});
            told(&all, &[Engine::Vllm], Path::new("d"), &provenance)
        };
        let found = of(json!({"model": "o/n", "revision": "v1.1"}));
        assert!(found[0].starts_with("# add `--revision v1.1`"), "{found:?}");
        assert_eq!(found[1..], of(json!({"model": "o/n", "revision": null})));
    }
}
