//! Drafts as recipes ask for them and as reports name them.
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_models::bounds;
use spectrain_models::{Children, DraftShape, Sampling, StaticTree, Stop, StopBy};

use crate::error::{Error, Result};

mod reach;
mod short;
mod threshold;

pub use reach::Reach;
pub use threshold::Threshold;

/// Prompts that a threshold is tuned on.
const TUNING_PROMPTS: usize = 8;

/// A draft as recipes ask for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "shape", rename_all = "snake_case", deny_unknown_fields)]
pub enum DraftChoice {
    /// One token after the other.
    Chain {
        /// Required. Tokens in a draft.
        length: usize,
        /// How the tokens are chosen above temperature 0.
        #[serde(default)]
        tokens: ChainTokens,
    },
    /// The same tree at every pass.
    Static {
        /// Required. `"medusa-63"`, `"eagle-25"`, or the nodes as paths of ranks: `[[0], [1], [0, 0]]` is the drafter's first
        /// and second guesses and, after the first guess, its first guess for the next token.
        tree: StaticTree,
        /// How tokens are chosen above temperature 0.
        #[serde(default)]
        children: Children,
    },
    /// EAGLE-2's tree: the likeliest of all paths found.
    Dynamic {
        /// The longest path.
        #[serde(default = "six")]
        depth: usize,
        /// Paths continued at each step, and children of each.
        #[serde(default = "ten")]
        top_k: usize,
        /// Required. Tokens in a draft.
        nodes: usize,
    },
    /// The likeliest of all paths, found best first (DDTree, <https://arxiv.org/abs/2604.12989>); only for drafters that make
    /// all steps in one pass, because each node asks for its successors.
    BestFirst {
        /// The longest path.
        #[serde(default = "six")]
        depth: usize,
        /// Required. Tokens in a draft.
        nodes: usize,
    },
    /// A chain that ends before a step that the drafter itself considers unlikely to be accepted.
    Confident {
        /// The most tokens in a draft.
        #[serde(default = "ten")]
        length: usize,
        /// How the drafter estimates whether a step is accepted.
        #[serde(default)]
        by: StopBy,
        /// The lowest estimate at which a step is drafted, from 0 to 1, or `"tuned"`: the threshold with the greatest predicted
        /// speed on 8 prompts, which are not among the evaluated ones as far as others are available.
        #[serde(default = "half")]
        threshold: Threshold,
    },
    /// A static tree made for this drafter: the best tree, given how often each of its guesses was right on some prompts.
    Calibrated(Calibration),
}

/// How the tokens of a chain are chosen above temperature 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChainTokens {
    /// Once in each of the other two ways; as drawn alone with the verifier `"block"`, which judges no others.
    #[default]
    Both,
    /// From the drafter's distribution.
    Drawn,
    /// The drafter's most likely tokens.
    Likeliest,
}

impl fmt::Display for ChainTokens {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Both => "both",
            Self::Drawn => "drawn",
            Self::Likeliest => "likeliest",
        })
    }
}

/// What a calibrated tree is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Required. Tokens in a draft; the report lists their paths.
    pub nodes: usize,
    /// The most children of a node.
    #[serde(default = "ten")]
    pub ranks: usize,
    /// The longest path.
    #[serde(default = "six")]
    pub depth: usize,
    /// Prompts to measure on, not among the evaluated ones as far as others are available.
    #[serde(default = "eight")]
    pub prompts: usize,
}

fn half() -> Threshold {
    Threshold::At(0.5)
}

fn six() -> usize {
    6
}

fn eight() -> usize {
    8
}

fn ten() -> usize {
    10
}

impl DraftChoice {
    /// A chain of `length` tokens.
    pub fn chain(length: usize) -> Self {
        Self::Chain {
            length,
            tokens: ChainTokens::Both,
        }
    }

    /// The same for a verifier that judges drawn tokens only: a chain for both ways to choose its tokens is drawn.
    pub fn drawn(self) -> Self {
        match self {
            Self::Chain {
                length,
                tokens: ChainTokens::Both,
            } => Self::Chain {
                length,
                tokens: ChainTokens::Drawn,
            },
            other => other,
        }
    }

    /// What it stands for at `sampling`: a chain for both ways to choose its tokens, where these differ; at temperature 0 they are
    /// one.
    pub(crate) fn at(&self, sampling: &Sampling) -> Vec<Self> {
        match *self {
            Self::Chain { length, .. } if sampling.is_greedy() => vec![Self::chain(length)],
            Self::Chain {
                length,
                tokens: ChainTokens::Both,
            } => [ChainTokens::Drawn, ChainTokens::Likeliest]
                .map(|tokens| Self::Chain { length, tokens })
                .to_vec(),
            _ => vec![self.clone()],
        }
    }

    /// What a report says of it at `sampling`, unless it has to be measured first.
    pub(crate) fn report(&self, sampling: &Sampling) -> Option<DraftReport> {
        match self {
            Self::Chain { length, tokens } => Some(DraftReport::Chain {
                length: *length,
                tokens: (!sampling.is_greedy()).then_some(*tokens),
            }),
            _ => self.shape().as_ref().map(DraftReport::of),
        }
    }

    /// The shape, unless it has to be measured first.
    pub fn shape(&self) -> Option<DraftShape> {
        Some(match self {
            &Self::Chain {
                length,
                tokens: ChainTokens::Likeliest,
            } => DraftShape::Static {
                tree: StaticTree::chain(length),
                children: Children::Top,
            },
            &Self::Chain { length, .. } => DraftShape::Chain { length },
            Self::Static { tree, children } => DraftShape::Static {
                tree: tree.clone(),
                children: *children,
            },
            &Self::Dynamic {
                depth,
                top_k,
                nodes,
            } => DraftShape::Dynamic {
                depth,
                top_k,
                nodes,
            },
            &Self::BestFirst { depth, nodes } => DraftShape::BestFirst { depth, nodes },
            &Self::Confident {
                length,
                by,
                threshold: Threshold::At(threshold),
            } => DraftShape::Confident {
                length,
                stop: Stop { by, threshold },
            },
            Self::Confident { .. } | Self::Calibrated(_) => return None,
        })
    }

    /// How many prompts it is made on, if any.
    pub fn prompts(&self) -> Option<usize> {
        match self {
            Self::Calibrated(calibration) => Some(calibration.prompts),
            Self::Confident {
                threshold: Threshold::Tuned,
                ..
            } => Some(TUNING_PROMPTS),
            _ => None,
        }
    }

    /// Whether its drafts are chains.
    pub fn is_chain(&self) -> bool {
        matches!(self, Self::Chain { .. } | Self::Confident { .. })
    }

    /// The same of a drafter of this reach: a chain ends with the last token that it can draft. Trees stay as they are; their
    /// depth is a bound.
    pub fn within(&self, reach: &Reach) -> Self {
        match *self {
            Self::Chain { length, tokens } => Self::Chain {
                length: reach.chain(length),
                tokens,
            },
            Self::Confident {
                length,
                by,
                threshold,
            } => Self::Confident {
                length: reach.chain(length),
                by,
                threshold,
            },
            _ => self.clone(),
        }
    }

    /// Checks that a drafter of this reach can draft it.
    ///
    /// # Errors
    /// It is only for drafters that make all steps in one pass, or that guess how likely a draft is kept.
    pub fn suits(&self, reach: &Reach) -> Result<()> {
        let (expected, got) = match self {
            Self::BestFirst { .. } if !reach.one_pass => (
                "a drafter that makes all steps in one pass for `best_first`",
                "one that makes a pass for each step; use `dynamic`",
            ),
            Self::Confident {
                by: StopBy::Head, ..
            } if !reach.has_confidence => (
                "a drafter with a confidence head for `confident` by `head`",
                "one without; use `by = \"entropy\"`",
            ),
            _ => return Ok(()),
        };
        Err(Error::Setting {
            key: "drafts",
            mismatch: Mismatch::new(expected, got),
        })
    }

    /// Checks that sizes are neither 0 nor beyond any use, and that probabilities are some.
    ///
    /// # Errors
    /// One is not, and is named.
    pub fn check(&self) -> Result<()> {
        let sizes = match self {
            Self::Chain { length, .. } => vec![("length", *length)],
            Self::Static { .. } => vec![],
            Self::Dynamic {
                depth,
                top_k,
                nodes,
            } => vec![("depth", *depth), ("top_k", *top_k), ("nodes", *nodes)],
            Self::BestFirst { depth, nodes } => vec![("depth", *depth), ("nodes", *nodes)],
            Self::Confident {
                length, threshold, ..
            } => {
                if let Threshold::At(threshold) = threshold
                    && !(0.0..=1.0).contains(threshold)
                {
                    return Err(Error::Setting {
                        key: "threshold",
                        mismatch: Mismatch::new("a number from 0 to 1", threshold),
                    });
                }
                vec![("length", *length)]
            }
            Self::Calibrated(calibration) => vec![
                ("nodes", calibration.nodes),
                ("ranks", calibration.ranks),
                ("depth", calibration.depth),
                ("prompts", calibration.prompts),
            ],
        };
        let sizes = sizes.into_iter().map(|(key, size)| match key {
            "prompts" => bounds::up_to(key, size, bounds::SAMPLES),
            _ => bounds::up_to(key, size, bounds::DRAFT),
        });
        bounds::check(sizes).map_err(|out| Error::Setting {
            key: out.key,
            mismatch: out.mismatch,
        })
    }
}

/// What a drafter of this reach drafts at `sampling` where `choices` are asked for, each draft once.
pub fn drafted(choices: &[DraftChoice], reach: &Reach, sampling: &Sampling) -> Vec<DraftChoice> {
    let mut drafted: Vec<DraftChoice> = Vec::new();
    for choice in choices.iter().map(|choice| choice.within(reach)) {
        for choice in choice.at(sampling) {
            if !drafted.contains(&choice) {
                drafted.push(choice);
            }
        }
    }
    drafted
}

/// What was drafted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shape", rename_all = "snake_case")]
pub enum DraftReport {
    /// One token after the other.
    Chain {
        /// Tokens in a draft.
        length: usize,
        /// How they were chosen; absent at temperature 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<ChainTokens>,
    },
    /// The same tree at every pass.
    Static {
        /// Its name or its paths.
        tree: StaticTree,
        /// Its nodes.
        nodes: usize,
        /// How tokens are chosen above temperature 0.
        children: Children,
    },
    /// The tree of EAGLE-2.
    Dynamic {
        /// The longest path.
        depth: usize,
        /// Paths continued at each step, and children of each.
        top_k: usize,
        /// The most tokens in a draft.
        nodes: usize,
    },
    /// The likeliest paths of all.
    BestFirst {
        /// The longest path.
        depth: usize,
        /// The most tokens in a draft.
        nodes: usize,
    },
    /// A chain that ends where the drafter is unsure.
    Confident {
        /// The most tokens in a draft.
        length: usize,
        /// Whence it knows.
        #[serde(default)]
        by: StopBy,
        /// Where it ends. Earlier versions called it `min_confidence`.
        #[serde(alias = "min_confidence")]
        threshold: f64,
        /// How that was found, where it was not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tuned: Option<TunedReport>,
    },
    /// The best static tree by measured acceptance.
    Calibrated {
        /// Its nodes; fewer than were asked for where no more have ever been right.
        nodes: usize,
        /// The nodes that were asked for; reports of earlier versions do not say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asked: Option<usize>,
        /// The most children of a node.
        ranks: usize,
        /// The longest path that was looked for.
        depth: usize,
        /// Prompts measured on.
        prompts: usize,
        /// Which those were.
        measured_on: MeasuredOn,
        /// The tree that was found.
        tree: StaticTree,
    },
}

/// How a threshold was found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TunedReport {
    /// Prompts that it was found on.
    pub prompts: usize,
    /// Which those were.
    pub measured_on: MeasuredOn,
    /// Time of a pass of the drafter over that of a pass of the target, as measured on them: `c`.
    pub cost: f64,
    /// Tokens for the time of a pass of the target that the formula predicts: tokens / (passes + c · passes of the drafter).
    pub speed: f64,
    /// The same of a chain that does not end early.
    pub speed_to_the_end: f64,
}

/// The prompts that a tree or a threshold was found on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredOn {
    /// Prompts that are not evaluated.
    #[default]
    Others,
    /// Evaluated prompts, as there are no others: the tree may suit them better than new ones.
    Evaluated,
}

impl DraftReport {
    /// Whether the same was asked for as in `other`. A threshold that was tuned and a tree that was calibrated are each drafter's
    /// own.
    pub(crate) fn is_as_asked(&self, other: &Self) -> bool {
        let tuned = |of: &Self| match of {
            &Self::Confident {
                length,
                by,
                tuned: Some(_),
                ..
            } => Some((length, by)),
            _ => None,
        };
        let calibrated = |of: &Self| match of {
            &Self::Calibrated {
                nodes,
                asked,
                ranks,
                depth,
                prompts,
                ..
            } => Some([asked.unwrap_or(nodes), ranks, depth, prompts]),
            _ => None,
        };
        let is_own = tuned(self).is_some() || calibrated(self).is_some();
        let is_alike = tuned(self) == tuned(other) && calibrated(self) == calibrated(other);
        self == other || (is_own && is_alike)
    }

    /// How a tuned threshold was found, in words, or that a tree was made for prompts that are evaluated.
    pub(crate) fn how_tuned(&self) -> Option<String> {
        let (threshold, tuned) = match self {
            Self::Confident {
                threshold,
                tuned: Some(tuned),
                ..
            } => (threshold, tuned),
            Self::Calibrated {
                prompts,
                measured_on: MeasuredOn::Evaluated,
                ..
            } => {
                return Some(format!(
                    "calibrated on {prompts} prompts that are evaluated, so the tree may suit them better than new ones"
                ));
            }
            _ => return None,
        };
        let which = match tuned.measured_on {
            MeasuredOn::Others => "that are not evaluated",
            MeasuredOn::Evaluated => "that are evaluated",
        };
        Some(format!(
            "threshold {threshold}, tuned on {} prompts {which}, where a pass of the drafter took {:.3} of one of the target; \
             by the formula it gives {:.2} tokens in the time of a pass of the target, {:.2} without an early end",
            tuned.prompts, tuned.cost, tuned.speed, tuned.speed_to_the_end
        ))
    }

    /// Of a chain that ends early where that was found best.
    pub(crate) fn tuned(shape: &DraftShape, how: TunedReport) -> Self {
        match Self::of(shape) {
            Self::Confident {
                length,
                by,
                threshold,
                ..
            } => Self::Confident {
                length,
                by,
                threshold,
                tuned: Some(how),
            },
            other => other,
        }
    }

    /// Of a shape that was asked for as it is.
    pub(crate) fn of(shape: &DraftShape) -> Self {
        match shape {
            &DraftShape::Chain { length } => Self::Chain {
                length,
                tokens: None,
            },
            DraftShape::Static { tree, children } => Self::Static {
                tree: tree.clone(),
                nodes: tree.len(),
                children: *children,
            },
            &DraftShape::Dynamic {
                depth,
                top_k,
                nodes,
            } => Self::Dynamic {
                depth,
                top_k,
                nodes,
            },
            &DraftShape::BestFirst { depth, nodes } => Self::BestFirst { depth, nodes },
            &DraftShape::Confident { length, stop } => Self::Confident {
                length,
                by: stop.by,
                threshold: stop.threshold,
                tuned: None,
            },
        }
    }
}

impl fmt::Display for DraftReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Chain {
                length,
                tokens: None,
            } => write!(f, "chain {length}"),
            Self::Chain {
                length,
                tokens: Some(tokens),
            } => write!(f, "chain {length} {tokens}"),
            Self::Static {
                tree,
                nodes,
                children,
            } => {
                match tree.name() {
                    Some(name) => write!(f, "tree {name}")?,
                    None => write!(f, "tree of {nodes}")?,
                }
                match children {
                    Children::Top => Ok(()),
                    Children::WithoutReplacement => write!(f, " without replacement"),
                    Children::WithReplacement => write!(f, " with replacement"),
                }
            }
            Self::Dynamic {
                depth,
                top_k,
                nodes,
            } => write!(f, "dynamic {depth}×{top_k}, {nodes} nodes"),
            Self::BestFirst { depth, nodes } => write!(f, "best first {depth}, {nodes} nodes"),
            Self::Confident {
                length,
                by,
                threshold,
                tuned,
            } => {
                let by = match by {
                    StopBy::Head => "",
                    StopBy::Entropy => " by entropy",
                };
                // Of two drafters that are compared each may have a threshold of its own.
                match tuned {
                    None => write!(f, "chain {length}{by} at {threshold}"),
                    Some(_) => write!(f, "chain {length}{by} at a tuned threshold"),
                }
            }
            // Of two drafters that are compared one may have a tree that is smaller.
            Self::Calibrated { nodes, asked, .. } => {
                write!(f, "calibrated tree of {}", asked.unwrap_or(*nodes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> serde_json::Result<DraftChoice> {
        serde_json::from_str(text)
    }

    #[test]
    fn every_shape_is_read_with_its_defaults() {
        let expected = DraftChoice::Dynamic {
            depth: 6,
            top_k: 10,
            nodes: 60,
        };
        assert_eq!(
            read(r#"{"shape": "dynamic", "nodes": 60}"#).unwrap(),
            expected
        );
        let expected = DraftChoice::Static {
            tree: StaticTree::named("eagle-25").unwrap(),
            children: Children::Top,
        };
        assert_eq!(
            read(r#"{"shape": "static", "tree": "eagle-25"}"#).unwrap(),
            expected
        );
        let expected = Calibration {
            nodes: 25,
            ranks: 10,
            depth: 6,
            prompts: 8,
        };
        assert_eq!(
            read(r#"{"shape": "calibrated", "nodes": 25}"#).unwrap(),
            DraftChoice::Calibrated(expected)
        );
        let expected = DraftChoice::BestFirst { depth: 6, nodes: 9 };
        assert_eq!(
            read(r#"{"shape": "best_first", "nodes": 9}"#).unwrap(),
            expected
        );
        let expected = DraftChoice::Confident {
            length: 7,
            by: StopBy::Head,
            threshold: Threshold::At(0.5),
        };
        assert_eq!(
            read(r#"{"shape": "confident", "length": 7}"#).unwrap(),
            expected
        );
    }

    #[test]
    fn a_shape_is_refused_that_is_unknown_or_has_keys_of_another() {
        for (text, part) in [
            (r#"{"shape": "bush"}"#, "unknown variant `bush`"),
            (
                r#"{"shape": "chain", "length": 3, "nodes": 3}"#,
                "unknown field `nodes`",
            ),
            (
                r#"{"shape": "calibrated", "nodes": 3, "top_k": 3}"#,
                "unknown field `top_k`",
            ),
            (
                r#"{"shape": "static", "tree": "oak"}"#,
                "`medusa-63`, `eagle-25` or a list",
            ),
            (
                r#"{"shape": "static", "tree": "eagle-25", "children": "best"}"#,
                "unknown variant `best`",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn chains_end_with_the_last_token_that_can_be_drafted() {
        let reach = |longest| Reach {
            longest,
            own: 5,
            one_pass: false,
            has_confidence: false,
        };
        let asked = DraftChoice::chain(100);
        assert_eq!(asked.within(&reach(Some(3))), DraftChoice::chain(3));
        assert_eq!(asked.within(&reach(Some(200))), asked);
        assert_eq!(asked.within(&reach(None)), asked);
        let sure = read(r#"{"shape": "confident", "length": 9, "by": "entropy"}"#).unwrap();
        let within = read(r#"{"shape": "confident", "length": 3, "by": "entropy"}"#).unwrap();
        assert_eq!(sure.within(&reach(Some(3))), within);
        // What comes to the same is drafted once, in both ways above temperature 0.
        let asked = [2, 3, 100].map(DraftChoice::chain);
        let of = |sampling| drafted(&asked, &reach(Some(3)), &sampling);
        assert_eq!(of(Sampling::GREEDY), [2, 3].map(DraftChoice::chain));
        assert_eq!(of(Sampling::at(1.0)).len(), 4);
        // At temperature 0 it does not matter how tokens are chosen.
        let ways = [
            ChainTokens::Both,
            ChainTokens::Likeliest,
            ChainTokens::Drawn,
        ];
        let asked = ways.map(|tokens| DraftChoice::Chain { length: 2, tokens });
        let of = |sampling| drafted(&asked, &reach(Some(3)), &sampling);
        assert_eq!(of(Sampling::GREEDY), [DraftChoice::chain(2)]);
        assert_eq!(of(Sampling::at(1.0)).len(), 2);
        // The depth of a tree is a bound and says nothing of what is drafted.
        let tree = read(r#"{"shape": "dynamic", "nodes": 9}"#).unwrap();
        assert_eq!(tree.within(&reach(Some(3))), tree);
    }

    #[test]
    fn a_size_of_0_is_refused_by_its_name() {
        let choice = DraftChoice::Dynamic {
            depth: 2,
            top_k: 0,
            nodes: 4,
        };
        let error = choice.check().unwrap_err().to_string();
        assert_eq!(error, "`top_k`: expected at least 1, found 0");
        choice.shape().unwrap();
        let choice = DraftChoice::Confident {
            length: 4,
            by: StopBy::Entropy,
            threshold: Threshold::At(1.5),
        };
        let error = choice.check().unwrap_err().to_string();
        assert_eq!(
            error,
            "`threshold`: expected a number from 0 to 1, found 1.5"
        );
    }

    #[test]
    fn reports_with_the_earlier_name_of_the_threshold_are_read() {
        let text = r#"{"shape": "confident", "length": 7, "min_confidence": 0.25}"#;
        let read: DraftReport = serde_json::from_str(text).unwrap();
        let expected = DraftReport::Confident {
            length: 7,
            by: StopBy::Head,
            threshold: 0.25,
            tuned: None,
        };
        assert_eq!(read, expected);
        assert_eq!(read.to_string(), "chain 7 at 0.25");
    }
}
