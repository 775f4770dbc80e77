//! What the program stands on: the machine, its devices and folders, and the hub.

use std::path::Path;

use spectrain_checkpoints::HubOptions;
use spectrain_checkpoints::hub::Surroundings;

mod devices;
mod finding;
mod machine;
mod online;
mod places;

pub use finding::{Finding, State};

/// Looks at all of it; `runs` is the folder of runs. The hub is asked only where `online` says so.
pub fn look(runs: &Path, online: bool) -> Vec<Finding> {
    let surroundings = Surroundings::of_process(&HubOptions::default());
    let mut found = vec![
        machine::version(),
        machine::features(),
        machine::processor(),
    ];
    found.extend(machine::memory());
    found.extend(devices::devices());
    found.push(places::place(
        "runs",
        runs,
        "name another folder with `--runs`",
    ));
    let instead = "name another folder in `HF_HOME`, or models by their folders";
    found.push(match &surroundings.cache {
        Some(cache) => places::place("cache", cache, instead),
        None => {
            Finding::good("cache", "there is no home folder to keep models in").problem(instead)
        }
    });
    found.push(online::hub(&surroundings, online));
    found.push(online::token(&surroundings));
    found
}
