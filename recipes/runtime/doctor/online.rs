//! The hub: where it is, whether it may be asked and answers, and whether there is a token.

use spectrain_checkpoints::HubOptions;
use spectrain_checkpoints::hub::{Surroundings, answers};

use super::finding::Finding;

/// The hub, which is asked only where `ask` says so.
pub(super) fn hub(surroundings: &Surroundings, ask: bool) -> Finding {
    let endpoint = match &surroundings.endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let advice = "set `HF_ENDPOINT` to the hub's address, or leave it out";
            return Finding::good("hub", error.clone()).problem(advice);
        }
    };
    let told = |what: &str| Finding::good("hub", format!("{endpoint}: {what}"));
    match (surroundings.is_offline, ask) {
        (true, true) => {
            told("not asked").problem("`HF_HUB_OFFLINE` is set: unset it to download models")
        }
        (true, false) => told("not asked, because `HF_HUB_OFFLINE` is set"),
        (false, false) => told("not asked; `--online` asks whether it answers"),
        (false, true) => match answers(&HubOptions::default()) {
            Ok(()) => told("it answers"),
            Err(reason) => told(&format!("it does not answer: {reason}")).problem(
                "check the network and its proxy (`HTTPS_PROXY`); `HF_ENDPOINT` names a mirror; without a network, name models by \
                 their folders",
            ),
        },
    }
}

/// Whether there is a token, of which nothing else is told.
pub(super) fn token(surroundings: &Surroundings) -> Finding {
    if surroundings.has_token {
        Finding::good("token", "there is one")
    } else {
        Finding::good(
            "token",
            "none; models that are gated or private need one in `HF_TOKEN`",
        )
    }
}
