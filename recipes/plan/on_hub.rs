//! Whether the hub has the targets of a recipe and what its training starts from, of which nothing is on this machine yet. Nothing is
//! downloaded.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Error;
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::hub::{
    HubLimits, RepoType, Repository, Surroundings, check_model, list,
};
use spectrain_checkpoints::{Error as HubError, HubOptions};

use crate::families::model_at_start::WHAT;
use crate::plan::preflight::Asked;
use crate::runtime::sizes::folder_of;
use crate::runtime::target::hub_options;

/// The longest that is waited for each part of the hub's answer.
const WAIT: Duration = Duration::from_secs(10);

/// A model's name and its revision.
type Named = (String, Option<String>);

/// What the hub says of models, each of which it is asked for once.
pub(super) struct OnHub {
    options: HubOptions,
    told: BTreeMap<Named, Told>,
}

/// What the hub says of a model.
#[derive(Clone)]
enum Told {
    /// It is there.
    There,
    /// It cannot be had, and why.
    Refused(String),
    /// It was not looked up, and why.
    Unknown(String),
}

/// What was found of the models of a recipe.
#[derive(Default)]
pub(super) struct Found {
    /// What would stop the run.
    pub(super) refusals: Vec<Error>,
    /// What could not be looked up.
    pub(super) warnings: Vec<String>,
}

impl OnHub {
    /// The hub of this process.
    pub(super) fn of_process() -> Self {
        Self::with(hub_options())
    }

    pub(super) fn with(options: HubOptions) -> Self {
        Self {
            options: HubOptions {
                limits: HubLimits {
                    connect: WAIT,
                    answer: WAIT,
                    silence: WAIT,
                    attempts: 1,
                    ..HubLimits::default()
                },
                ..options
            },
            told: BTreeMap::new(),
        }
    }

    /// What the hub says of the models of a recipe of which nothing is here. Where it may not be asked, the run is refused for
    /// that.
    pub(super) fn models(&mut self, asked: &Asked) -> Found {
        let (recipe, mut found) = (asked.recipe, Found::default());
        if Surroundings::of_process(&self.options).is_offline {
            return found;
        }
        let own = recipe.model().map(|model| {
            let revision = recipe.target.revision.clone();
            ("target.model", (model.to_owned(), revision))
        });
        let further = recipe.evaluate.targets.iter();
        let further = further.map(|model| ("evaluate.targets", (model.clone(), None)));
        let drafter = recipe.method.model();
        let drafter = drafter.map(|(model, revision)| {
            let revision = revision.map(str::to_owned);
            ("drafter.model", (model.to_owned(), revision))
        });
        let start = asked.start_on_hub().map(|repository| {
            let revision = Some(repository.revision().to_owned());
            ("start", (repository.id().to_owned(), revision))
        });
        let models = own.into_iter().chain(further).chain(drafter).chain(start);
        for (key, named) in models {
            let (model, revision) = (named.0.as_str(), named.1.as_deref());
            // What is no name of a model is refused elsewhere, and what is here in part is completed.
            let is_asked = check_model(model).is_ok() && !Path::new(model).exists();
            if !is_asked || folder_of(model, revision).is_some() {
                continue;
            }
            let model = model.to_owned();
            match self.told(named) {
                Told::There => {}
                Told::Refused(why) => {
                    let what = match key {
                        "drafter.model" => WHAT,
                        "start" => "start",
                        _ => "target",
                    };
                    let refused =
                        Error::msg(why).context(format!("cannot open the {what} `{model}`"));
                    found.refusals.push(refused.context(format!("`{key}`")));
                }
                Told::Unknown(why) => found
                    .warnings
                    .push(format!("`{key}`: `{model}` was not looked up: {why}")),
            }
        }
        found
    }

    fn told(&mut self, named: Named) -> Told {
        if let Some(told) = self.told.get(&named) {
            return told.clone();
        }
        let told = ask(&named, &self.options);
        self.told.insert(named, told.clone());
        told
    }
}

fn ask((model, revision): &Named, options: &HubOptions) -> Told {
    let repository = Repository::new(RepoType::Model, model, revision.as_deref());
    let listing = repository.and_then(|repository| list(&repository, options));
    match listing {
        Ok(listing) if listing.files.iter().any(|file| file.path == CONFIG) => Told::There,
        Ok(_) => Told::Refused(format!("the hub has no `{CONFIG}` of it: it is no model")),
        Err(HubError::NotOnHub {
            model,
            endpoint,
            revision,
            reason,
            ..
        }) => {
            let file = CONFIG.to_owned();
            let refused = HubError::NotOnHub {
                model,
                endpoint,
                revision,
                file,
                reason,
            };
            Told::Refused(refused.to_string())
        }
        Err(refused @ (HubError::Refused { .. } | HubError::HubRequest { .. })) => {
            Told::Refused(refused.to_string())
        }
        Err(HubError::Unreachable {
            endpoint, reason, ..
        }) => Told::Unknown(format!("`{endpoint}` cannot be reached: {reason}")),
        Err(other) => Told::Unknown(other.to_string()),
    }
}
