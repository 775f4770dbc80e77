//! The ways of decoding that variations were judged in, and what each did there.
use std::ptr;

use spectrain_checkpoints::Mismatch;

use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::paired::matched::{OfReport, check_same, same_prompts};
use crate::paired::own::{OwnLengths, counterpart};
use crate::report::{DatasetReport, Report, SettingReport};
use crate::sweep::seeds::SeedCounts;
use crate::sweep::variation::{TrainedSeed, Variation};

/// A way of decoding, with all variations that were judged so.
pub(super) struct Way<'a> {
    /// The setting in which it appears first, of its report.
    pub(super) leader: OfReport<'a>,
    members: Vec<Member<'a>>,
}

/// A variation that was judged in this way.
struct Member<'a> {
    /// Its place among the variations.
    number: usize,
    /// That of each seed.
    settings: Vec<&'a SettingReport>,
}

/// All prompts of a way of decoding, or one of its datasets.
pub(super) struct Part<'a> {
    /// The dataset, where this is one of several.
    pub(super) dataset: Option<&'a str>,
    /// The place of each variation that was judged so, with what its seeds did.
    pub(super) judged: Vec<(usize, Vec<Judged<'a>>)>,
}

/// What the drafter of one training did with some prompts.
pub(super) struct Judged<'a> {
    pub(super) setting: &'a SettingReport,
    /// In the order that they have for all variations which are compared.
    datasets: Vec<&'a DatasetReport>,
    /// The dataset, where these are not all prompts.
    dataset: Option<&'a str>,
}

impl Judged<'_> {
    /// The figures of these prompts together.
    fn figures(&self) -> Option<&DatasetReport> {
        match self.dataset {
            None => Some(&self.setting.overall),
            Some(_) => self.datasets.first().copied(),
        }
    }

    /// Acceptance rate α.
    pub(super) fn alpha(&self) -> Option<f64> {
        self.figures()?.alpha
    }

    /// How many times faster decoding was measured to be. Where the machine's pace changed, what is predicted of all prompts, and of a
    /// dataset nothing.
    pub(super) fn speedup(&self) -> Option<f64> {
        let of_all = self.setting.overall.speedup;
        if self.dataset.is_none() {
            return of_all.map(|found| found.trusted().0);
        }
        let is_trusted = of_all.is_none_or(|found| found.in_turns().is_none());
        self.figures()?
            .speedup
            .filter(|_| is_trusted)
            .map(|found| found.wall)
    }
}

/// What each seed of a variation counted in these conversations.
pub(super) fn counts(seeds: &[Judged]) -> SeedCounts {
    let of_seed = |seed: &Judged| -> Vec<Counts> {
        let datasets = seed.datasets.iter();
        datasets.flat_map(|of| of.counts.iter().copied()).collect()
    };
    SeedCounts(seeds.iter().map(of_seed).collect())
}

/// The ways of decoding of variations that are compared with the first one, each of which has a report. A chain of another length
/// stands in that of the first where the two have no way of decoding in common.
///
/// # Errors
/// Seeds of a variation were judged in other ways; or variations in one way by other targets, on other prompts or to another end.
pub(super) fn together<'a>(variations: &[&'a Variation]) -> Result<Vec<Way<'a>>> {
    variations.iter().try_for_each(|one| check_seeds(one))?;
    let first = variations.first().and_then(|first| first.seeds.first());
    let is_first =
        |report: &Report| first.is_some_and(|first| ptr::eq(&raw const first.report, report));
    let ways = ways(variations, &|report, (of, leader)| match is_first(of) {
        true => counterpart(report, of, leader),
        false => report.like(leader),
    });
    for way in &ways {
        for Member { number, settings } in &way.members {
            let seeds = variations[*number].seeds.iter().zip(settings);
            for (seed, setting) in seeds {
                check_same(way.leader, (&seed.report, setting))?;
            }
        }
    }
    Ok(ways)
}

/// The ways of decoding of runs that are only shown, not compared.
pub(super) fn apart<'a>(variations: &[&'a Variation]) -> Vec<Way<'a>> {
    ways(variations, &|report, (_, leader)| report.like(leader))
}

/// Which setting of a report belongs to a way of decoding with this leader.
type Find<'f, 'a> = &'f dyn Fn(&'a Report, OfReport<'a>) -> Option<&'a SettingReport>;

/// Every way of decoding in the order of first appearance: a setting that belongs to no earlier one begins a new one.
fn ways<'a>(variations: &[&'a Variation], find: Find<'_, 'a>) -> Vec<Way<'a>> {
    let mut leaders: Vec<OfReport<'a>> = Vec::new();
    for TrainedSeed { report, .. } in variations.iter().filter_map(|one| one.seeds.first()) {
        for setting in &report.settings {
            let is_its = |leader: &OfReport<'a>| {
                find(report, *leader).is_some_and(|found| ptr::eq(found, setting))
            };
            if !leaders.iter().any(is_its) {
                leaders.push((report, setting));
            }
        }
    }
    let of_leader = |leader: OfReport<'a>| {
        let members = variations.iter().enumerate().filter_map(|(number, one)| {
            let settings = one.seeds.iter().map(|seed| find(&seed.report, leader));
            let settings = settings.collect::<Option<Vec<_>>>()?;
            (!settings.is_empty()).then_some(Member { number, settings })
        });
        Way {
            leader,
            members: members.collect(),
        }
    };
    leaders.into_iter().map(of_leader).collect()
}

/// Fails where the seeds of a variation were not all judged in the same ways.
fn check_seeds(variation: &Variation) -> Result<()> {
    let [first, others @ ..] = &variation.seeds[..] else {
        return Ok(());
    };
    for other in others {
        for [one, other] in [[first, other], [other, first]] {
            let mut settings = one.report.settings.iter();
            if let Some(alone) = settings.find(|setting| other.report.like(setting).is_none()) {
                let of = |seed: &TrainedSeed| format!("seed {} of `{}`", seed.seed, variation.name);
                return Err(Error::Setting {
                    key: "sweep",
                    mismatch: Mismatch::new(
                        format!(
                            "{} for {}, as for {}",
                            alone.of_target(),
                            of(other),
                            of(one)
                        ),
                        "no such setting",
                    ),
                });
            }
        }
    }
    Ok(())
}

impl<'a> Way<'a> {
    /// The places of the variations that were judged so.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.members.iter().map(|member| member.number)
    }

    /// What it is called: by the draft, unless chains of several lengths stand together.
    pub(super) fn heading(&self) -> String {
        self.lengths().heading(self.leader.1)
    }

    /// The settings that stand together although the lengths of their chains differ.
    pub(super) fn lengths(&self) -> OwnLengths<'a> {
        let settings = self.members.iter().flat_map(|of| &of.settings);
        OwnLengths::beside(self.leader.1, settings.copied().collect())
    }

    /// All prompts, and each dataset where there are several, as the leader has them.
    pub(super) fn parts(&self) -> Vec<Part<'a>> {
        let (_, leader) = self.leader;
        let same = |setting, place| self.same(setting, place);
        let mut parts = vec![self.part(None, |setting| {
            let places = 0..leader.datasets.len();
            places.filter_map(|place| same(setting, place)).collect()
        })];
        if leader.datasets.len() > 1 {
            let each = leader.datasets.iter().enumerate();
            parts.extend(each.map(|(place, dataset)| {
                self.part(Some(&*dataset.name), |setting| {
                    Vec::from_iter(same(setting, place))
                })
            }));
        }
        parts
    }

    /// The same of runs that have prompts of their own: their datasets by their names.
    pub(super) fn own_parts(&self) -> Vec<Part<'a>> {
        let mut names: Vec<&'a str> = Vec::new();
        for setting in self.members.iter().flat_map(|of| &of.settings) {
            let own = setting.datasets.iter().map(|of| of.name.as_str());
            for name in own.filter(|_| setting.datasets.len() > 1) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let mut parts = vec![self.part(None, |setting| setting.datasets.iter().collect())];
        parts.extend(names.into_iter().map(|name| {
            let mut part = self.part(Some(name), |setting| {
                let datasets = setting.datasets.iter();
                datasets.filter(|of| of.name == name).collect()
            });
            let has_any = |seed: &Judged| !seed.datasets.is_empty();
            part.judged.retain(|(_, seeds)| seeds.iter().any(has_any));
            part
        }));
        parts
    }

    /// What every member did with the datasets that are taken of its settings.
    fn part(
        &self,
        dataset: Option<&'a str>,
        datasets: impl Fn(&'a SettingReport) -> Vec<&'a DatasetReport>,
    ) -> Part<'a> {
        let of_seed = |&setting: &&'a SettingReport| Judged {
            setting,
            datasets: datasets(setting),
            dataset,
        };
        let members = self.members.iter();
        let judged = members.map(|of| (of.number, of.settings.iter().map(of_seed).collect()));
        Part {
            dataset,
            judged: judged.collect(),
        }
    }

    /// The dataset of a setting with the prompts that the leader has at this place.
    fn same(&self, setting: &'a SettingReport, place: usize) -> Option<&'a DatasetReport> {
        let (_, leader) = self.leader;
        match ptr::eq(setting, leader) {
            true => setting.datasets.get(place),
            false => same_prompts(setting, place, &leader.datasets[place]),
        }
    }
}
