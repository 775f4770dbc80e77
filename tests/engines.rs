//! Real engines decode with the drafters that are exported, and count what this program counts.
//!
//! Opt-in, as an engine takes gigabytes: see `tests/engines/README.md`.
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use burn::prelude::Tensor;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use spectrain::runtime::pair::Pair;
use spectrain_checkpoints::DType;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{DecodeSettings, Greedy};
use spectrain_models::device::test_device;
use spectrain_models::{
    Draft, DraftRequest, DraftShape, Features, KnownText, Proposer, Sampling, TakeLogits,
};

use crate::workspace::Workspace;

/// Tokens of each output.
pub const NEW: usize = 40;
/// Tokens of each draft.
pub const LENGTH: usize = 4;
const PROMPTS: usize = 6;

/// Where the recipe of [`TARGET`] leaves it.
const FIRST: &str = "runs/eagle3/synthetic/target";

/// Tokens that the target knows.
const VOCAB: u64 = 400;

/// A target that has learned something, in heads as wide as engines allow, and the first drafter for it.
const TARGET: &str = r#"recipe = "eagle3"
name = "eagle3"

[synthetic]
conversations = 600
held_out = 24
vocab = 400
layers = 8
d_model = 64
d_ff = 128
heads = 2
kv_heads = 1
d_head = 32
steps = 240
batch_tokens = 512
max_length = 256
learning_rate = 1e-2
warmup_steps = 5

[data]
max_length = 256

[drafter]
draft_vocab = 256

[train]
steps = 200
batch_tokens = 512
learning_rate = 1e-2
warmup_steps = 5

[export]
dtype = "f32"

[evaluate]
prompts = 2
max_new_tokens = 8
"#;

/// A drafter of another family for the same target; `more` is its own part of the recipe.
pub fn recipe(kind: &str, name: &str, more: &str) -> String {
    let [_, train] = TARGET.split("[train]").collect::<Vec<_>>()[..] else {
        panic!("one `[train]`");
    };
    // A block drafter learns more slowly than the others, and from the target.
    let train = match kind {
        "dflash" => train
            .replace("steps = 200", "steps = 500")
            .replace("1e-2", "3e-3"),
        _ => train.to_owned(),
    };
    format!(
        "recipe = \"{kind}\"\nname = \"{name}\"\n\n[target]\nmodel = \"runs/eagle3/synthetic/target\"\n\n[data]\n\
         train = \"runs/eagle3/synthetic/train.jsonl\"\neval = \"runs/eagle3/synthetic/eval.jsonl\"\nmax_length = 256\n\n\
         {more}\n[train]{train}"
    )
}

/// What was decoded for each prompt, and counts of passes, drafted and accepted tokens.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    pub tokens: Vec<Vec<u64>>,
    pub passes: Vec<u64>,
    pub accepted: Vec<u64>,
}

impl Decoded {
    /// Adds an output, of which the passes up to the one that reaches the engine's end are counted.
    fn add(&mut self, mut tokens: Vec<u64>, of_passes: &[u64], last: Last) {
        tokens.truncate(NEW);
        let (mut left, mut passes, mut accepted) = (NEW as u64 - 1, 0, 0);
        for &of_pass in of_passes {
            if left == 0 {
                break;
            }
            accepted += match last {
                Last::Whole => of_pass,
                Last::Cut => of_pass.min(left - 1),
            };
            left = left.saturating_sub(of_pass + 1);
            passes += 1;
        }
        self.tokens.push(tokens);
        self.passes.push(passes);
        self.accepted.push(accepted);
    }
}

/// How an engine ends an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// It drafts in full to the end, counts what it accepts, and then cuts off what is too much.
    Whole,
    /// It counts no more than what was left to be decoded.
    Cut,
}

/// Tokens that this program decodes. Its drafts get shorter where the output ends, so it goes further than the engine.
const FURTHER: usize = NEW + LENGTH + 1;

/// What this program decodes with a drafter of the first target.
pub fn ours(workspace: &Workspace, drafter: &str, last: Last) -> Decoded {
    ours_for(workspace, FIRST, drafter, last)
}

fn ours_for(workspace: &Workspace, target: &str, drafter: &str, last: Last) -> Decoded {
    let words = [
        "evaluate",
        "--target",
        target,
        "--drafter",
        drafter,
        "--prompts",
        "prompts.jsonl",
        "--temperature",
        "0",
        "--draft-length",
        &LENGTH.to_string(),
        "--max-new-tokens",
        &FURTHER.to_string(),
        "--ignore-stop",
        "--outputs",
        "outputs.jsonl",
    ];
    workspace.run(&words).succeeded();
    let mut decoded = Decoded::default();
    for line in workspace.text("outputs.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        decoded.add(numbers(&line["tokens"]), &numbers(&line["accepted"]), last);
    }
    decoded
}

/// A drafter that never sees the first token of a text. SGLang hands a language model its texts from the second token on, as
/// it does to EAGLE, which reads the hidden states of the first one with it.
struct WithoutFirst {
    drafter: Box<dyn Proposer>,
    capacity: usize,
    begun: bool,
}

impl Proposer for WithoutFirst {
    fn start(&mut self, capacity: usize, _: u32) {
        (self.capacity, self.begun) = (capacity, false);
    }

    fn observe(&mut self, tokens: &[u32], features: &Features) {
        let rest = if std::mem::replace(&mut self.begun, true) {
            tokens
        } else {
            self.drafter.start(self.capacity, tokens[0]);
            &tokens[1..]
        };
        // Language models read no features.
        self.drafter.observe(rest, features);
    }

    fn judged(&mut self, tokens: &[u32], logits: &Tensor<2>) {
        self.drafter.judged(tokens, logits);
    }

    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        self.drafter.propose(request, rng)
    }

    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>> {
        self.drafter.ranks(tokens)
    }

    fn forced(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        self.drafter.forced(tokens)
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        self.drafter.along(text, take);
    }

    fn follows_text(&self) -> bool {
        self.drafter.follows_text()
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        self.drafter.vocabulary()
    }

    fn max_depth(&self) -> Option<usize> {
        self.drafter.max_depth()
    }

    fn draft_length(&self) -> usize {
        self.drafter.draft_length()
    }

    fn passes(&self, depth: usize) -> usize {
        self.drafter.passes(depth)
    }

    fn parameters_per_pass(&self) -> u64 {
        self.drafter.parameters_per_pass()
    }

    fn has_confidence(&self) -> bool {
        self.drafter.has_confidence()
    }
}

/// What this program decodes with a language model that never sees the first token.
fn ours_without_first(
    (workspace, prompts): &(Workspace, Vec<Vec<u64>>),
    drafter: &str,
    last: Last,
) -> Decoded {
    let target = workspace.path(FIRST);
    let drafter = workspace.path(drafter);
    let pair = Pair::open(&target, &drafter, &test_device(), DType::F32).unwrap();
    let mut proposer = WithoutFirst {
        drafter: pair.drafter.session(),
        capacity: 0,
        begun: false,
    };
    let settings = DecodeSettings {
        max_new_tokens: FURTHER,
        draft: DraftShape::Chain { length: LENGTH },
        sampling: Sampling::at(0.0),
        stop: Vec::new(),
        shadow: None,
    };
    let mut decoded = Decoded::default();
    for prompt in prompts {
        let prompt: Vec<u32> = prompt.iter().map(|&token| token as u32).collect();
        let mut rng = StdRng::seed_from_u64(0);
        let decoder = pair.decoder();
        let output = decoder.generate(&mut proposer, &Greedy, &prompt, &settings, &mut rng);
        let output = output.unwrap();
        let tokens = output.tokens.iter().map(|&token| token.into()).collect();
        let accepted: Vec<u64> = output
            .passes
            .iter()
            .map(|pass| pass.accepted as u64)
            .collect();
        decoded.add(tokens, &accepted, last);
    }
    decoded
}

fn numbers(list: &Value) -> Vec<u64> {
    serde_json::from_value(list.clone()).unwrap()
}

/// The Python of an environment that a variable names, or nothing and a word about it.
pub fn python(variable: &str) -> Option<PathBuf> {
    let Some(environment) = std::env::var_os(variable) else {
        eprintln!(
            "skipped: `{variable}` names no Python environment; see `tests/engines/README.md`"
        );
        return None;
    };
    Some(Path::new(&environment).join("bin/python"))
}

/// The results of some jobs, which a runner does one after the other.
fn run_jobs(python: &Path, runner: &str, workspace: &Workspace, jobs: &[Value]) -> Vec<Decoded> {
    let out = workspace.path(format!("{runner}.jsonl"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/engines/{runner}.py"));
    let mut process = Command::new(python)
        .arg(script)
        .arg(&out)
        .current_dir(workspace.path(""))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(json!(jobs).to_string().as_bytes()).unwrap();
    drop(input);
    assert!(process.wait().unwrap().success());
    let results = std::fs::read_to_string(out).unwrap();
    let decoded = |(line, job): (&str, &Value)| {
        let found: Value = serde_json::from_str(line).unwrap();
        if let Some(error) = found["error"].as_str() {
            panic!("{runner}, {}: {error}", job["drafter"]);
        }
        Decoded {
            tokens: serde_json::from_value(found["tokens"].clone()).unwrap(),
            passes: numbers(&found["drafts"]),
            accepted: numbers(&found["accepted"]),
        }
    };
    let results: Vec<_> = results.lines().zip(jobs).map(decoded).collect();
    assert_eq!(results.len(), jobs.len());
    results
}

/// A target, a drafter of each of some kinds for it, and prompts.
pub fn trained(kinds: &[(&str, &str, &str)]) -> (Workspace, Vec<Vec<u64>>) {
    let workspace = Workspace::of(TARGET);
    workspace.run(&["recipe", "recipe.toml"]).succeeded();
    for (kind, name, more) in kinds {
        workspace.write("other.toml", recipe(kind, name, more));
        workspace.run(&["recipe", "other.toml"]).succeeded();
    }
    let prompts = workspace.json("runs/eagle3/prepare/prompts.json");
    let mut prompts: Vec<Vec<u64>> = serde_json::from_value(prompts).unwrap();
    prompts.truncate(PROMPTS);
    let row = |prompt: &Vec<u64>| json!({"input_ids": prompt, "loss_mask": vec![0; prompt.len()]});
    let rows: Vec<_> = prompts
        .iter()
        .map(|prompt| row(prompt).to_string())
        .collect();
    workspace.write("prompts.jsonl", rows.join("\n"));
    (workspace, prompts)
}

/// A target's folder and a drafter's, what its job has besides, and how its engine ends.
struct Job {
    target: &'static str,
    drafter: &'static str,
    job: Value,
    last: Last,
    /// Whether the engine drafts before the target has read the prompt. It is then given the first new token too, behind
    /// which the others begin to draft.
    early: bool,
    /// Whether the engine's drafter never sees the first token; see [`WithoutFirst`].
    without_first: bool,
}

impl Job {
    fn new(drafter: &'static str, job: Value, last: Last) -> Self {
        Self {
            target: FIRST,
            drafter,
            job,
            last,
            early: false,
            without_first: false,
        }
    }
}

/// Fails unless the engine decodes without a drafter and with each of these what this program decodes, and accepts as
/// many tokens in as many passes.
fn agrees(python: &Path, runner: &str, trained: &(Workspace, Vec<Vec<u64>>), pairs: &[Job]) {
    let (workspace, prompts) = trained;
    let here = |pair: &Job| {
        if pair.without_first {
            ours_without_first(trained, pair.drafter, pair.last)
        } else {
            ours_for(workspace, pair.target, pair.drafter, pair.last)
        }
    };
    let ours: Vec<Decoded> = pairs.iter().map(here).collect();
    let texts = || {
        prompts
            .iter()
            .chain(ours.iter().flat_map(|ours| &ours.tokens))
    };
    let unused = (0..VOCAB).find(|token| !texts().any(|tokens| tokens.contains(token)));
    let job = |target: &str, drafter: Value, more: &Value| {
        let mut job = json!({
            "unused": unused.unwrap(),
            "target": workspace.path(target),
            "drafter": drafter,
            "length": LENGTH,
            "max_new": NEW,
            "prompts": prompts,
        });
        for (key, value) in more.as_object().unwrap() {
            job[key] = value.clone();
        }
        job
    };
    let mut jobs = vec![job(pairs[0].target, Value::Null, &json!({}))];
    for (pair, ours) in pairs.iter().zip(&ours) {
        let drafter = json!(workspace.path(pair.drafter));
        let mut of_pair = job(pair.target, drafter, &pair.job);
        if pair.early {
            let with_first =
                |(prompt, new): (&Vec<u64>, &Vec<u64>)| [&prompt[..], &new[..1]].concat();
            of_pair["prompts"] = prompts.iter().zip(&ours.tokens).map(with_first).collect();
            of_pair["max_new"] = json!(NEW - 1);
        }
        jobs.push(of_pair);
    }
    let mut results = run_jobs(python, runner, workspace, &jobs).into_iter();
    let plain = results.next().unwrap().tokens;
    for ((pair, ours), mut theirs) in pairs.iter().zip(ours).zip(results) {
        let what = format!("{runner}, {}", pair.drafter);
        if pair.early {
            for (tokens, ours) in theirs.tokens.iter_mut().zip(&ours.tokens) {
                tokens.insert(0, ours[0]);
            }
        }
        assert_eq!(theirs.tokens, plain, "{what}: not the engine's own output");
        assert_eq!(ours, theirs, "{what}");
        let accepted: u64 = theirs.accepted.iter().sum();
        assert!(accepted > 0, "{what}: nothing accepted proves nothing");
        let passes: u64 = theirs.passes.iter().sum();
        eprintln!("{what}: {accepted} accepted in {passes} passes");
    }
}

const EAGLE1: (&str, &str, &str) = ("eagle1", "first", "");
const PEAGLE: (&str, &str, &str) = (
    "peagle",
    "together",
    "[drafter]\nlayers = 2\nmask_token = 0\n\n[objective]\ndraft_tokens = 5\n",
);
const MEDUSA: (&str, &str, &str) = (
    "medusa",
    "heads",
    "[drafter]\nmedusa_heads = 4\n\n[objective]\nlabel_weight = 0.0\nteacher_weight = 1.0\n",
);
const MTP: (&str, &str, &str) = ("mtp", "mtp", "[objective]\ndraft_steps = 4\n");
const MTP_AFTER_NORM: (&str, &str, &str) = (
    "mtp",
    "mtp",
    "[drafter]\nafter_final_norm = true\n\n[objective]\ndraft_steps = 4\n",
);
const LANGUAGE_MODEL: (&str, &str, &str) =
    ("distillspec", "small", "[drafter]\nkeep_layers = [0, 7]\n");
const PARD: (&str, &str, &str) = (
    "pard",
    "parallel",
    "[drafter]\nkeep_layers = [0, 7]\nmask_token = 0\n\n[objective]\ndraft_tokens = 5\n",
);
/// Of one layer, as the CPU build of vLLM 0.32 takes the first layer's key norm for the contexts of all.
const DFLASH: (&str, &str, &str) = (
    "dflash",
    "dflash",
    "[drafter]\nlayers = 1\nblock_size = 5\nmask_token = 0\n\n[objective]\nanchors = 32\nlabel_weight = 0.0\nteacher_weight = 1.0\n",
);

#[test]
fn vllm_and_transformers_accept_what_this_program_accepts() {
    let Some(python) = python("SPECTRAIN_VLLM") else {
        return;
    };
    let trained = trained(&[EAGLE1, PEAGLE, MEDUSA, LANGUAGE_MODEL, PARD, DFLASH]);
    for (run, to, out) in [
        ("eagle3", "speculators", "eagle3-named"),
        ("together", "speculators", "together-named"),
        ("dflash", "speculators", "dflash-named"),
        ("dflash", "hf", "dflash-hf"),
    ] {
        let words = ["export", run, "--to", to, "--dtype", "f32", "--out", out];
        trained.0.run(&words).succeeded();
    }
    let method = |drafter, method: &str| {
        let job = json!({"speculative": {"method": method}});
        Job::new(drafter, job, Last::Whole)
    };
    let parallel = json!({"speculative": {"method": "draft_model", "parallel_drafting": true}});
    let eagle3 = json!({"speculative": {"method": "eagle3", "parallel_drafting": true}});
    let pairs = [
        method("runs/eagle3/export/drafter", "eagle3"),
        method("eagle3-named", "eagle3"),
        method("runs/first/export/drafter", "eagle"),
        Job::new("runs/together/export/drafter", eagle3.clone(), Last::Whole),
        Job::new("together-named", eagle3, Last::Whole),
        method("runs/heads/export/drafter", "medusa"),
        method("runs/small/export/drafter", "draft_model"),
        Job::new("runs/parallel/export/drafter", parallel, Last::Whole),
        method("runs/dflash/export/drafter", "dflash"),
        method("dflash-named", "dflash"),
        method("dflash-hf", "dflash"),
    ];
    agrees(&python, "vllm_runner", &trained, &pairs);
    let model = json!({"speculation": null, "mended": true});
    let dflash = json!({"speculation": "dflash"});
    let pairs = [
        Job {
            early: true,
            ..Job::new("runs/small/export/drafter", model, Last::Cut)
        },
        Job::new("dflash-hf", dflash, Last::Cut),
    ];
    agrees(&python, "transformers_runner", &trained, &pairs);
}

#[test]
fn vllm_accepts_what_this_program_accepts_of_block_drafters_with_sinks() {
    let Some(python) = python("SPECTRAIN_VLLM") else {
        return;
    };
    let (kind, _, more) = DFLASH;
    let sinks = more.replace("layers = 1", "layers = 1\nsinks = true");
    let narrow = sinks.replace("sinks = true", "sinks = true\nwindow = 24");
    let trained = trained(&[(kind, "sinks", &sinks), (kind, "narrow", &narrow)]);
    let pairs = ["runs/sinks/export/drafter", "runs/narrow/export/drafter"].map(|drafter| {
        let job = json!({"speculative": {"method": "dflash"}});
        Job::new(drafter, job, Last::Whole)
    });
    agrees(&python, "vllm_runner", &trained, &pairs);
}

/// EAGLE-3 of several layers.
const DEEP: (&str, &str, &str) = ("eagle3", "deep", "[drafter]\nlayers = 3\n");

#[test]
fn vllm_accepts_what_this_program_accepts_of_eagle_3_of_several_layers() {
    let Some(python) = python("SPECTRAIN_VLLM") else {
        return;
    };
    let trained = trained(&[DEEP]);
    let words = ["export", "deep", "--to", "speculators", "--dtype", "f32"];
    let words = [&words[..], &["--out", "deep-named"]].concat();
    trained.0.run(&words).succeeded();
    let pairs = ["runs/deep/export/drafter", "deep-named"].map(|drafter| {
        let job = json!({"speculative": {"method": "eagle3"}});
        Job::new(drafter, job, Last::Whole)
    });
    agrees(&python, "vllm_runner", &trained, &pairs);
}

/// One layer of EAGLE-3 and two of P-EAGLE that norm queries and keys, and both where they also slide.
const NORMED: [(&str, &str, &str); 4] = [
    (
        "eagle3",
        "normed",
        "[drafter]\nhead_norm = true\ndraft_vocab = 256\n",
    ),
    (
        "eagle3",
        "narrow",
        "[drafter]\nhead_norm = true\nwindow = 24\n",
    ),
    (
        "peagle",
        "together",
        "[drafter]\nhead_norm = true\nlayers = 2\nmask_token = 0\n\n[objective]\ndraft_tokens = 5\n",
    ),
    (
        "peagle",
        "narrow-together",
        "[drafter]\nhead_norm = true\nwindow = 24\nlayers = 2\nmask_token = 0\n\n[objective]\ndraft_tokens = 5\n",
    ),
];

#[test]
fn vllm_accepts_what_this_program_accepts_of_layers_that_norm_queries_and_keys() {
    let Some(python) = python("SPECTRAIN_VLLM") else {
        return;
    };
    let trained = trained(&NORMED);
    let mut pairs = Vec::new();
    for (kind, name, usual, named) in [
        (
            "eagle3",
            "normed",
            "runs/normed/export/drafter",
            "normed-named",
        ),
        (
            "eagle3",
            "narrow",
            "runs/narrow/export/drafter",
            "narrow-named",
        ),
        (
            "peagle",
            "together",
            "runs/together/export/drafter",
            "together-named",
        ),
        (
            "peagle",
            "narrow-together",
            "runs/narrow-together/export/drafter",
            "narrow-together-named",
        ),
    ] {
        let words = [
            "export",
            name,
            "--to",
            "speculators",
            "--dtype",
            "f32",
            "--out",
            named,
        ];
        trained.0.run(&words).succeeded();
        let speculative = json!({"method": "eagle3", "parallel_drafting": kind == "peagle"});
        let job = json!({ "speculative": speculative });
        pairs.extend([usual, named].map(|drafter| Job::new(drafter, job.clone(), Last::Whole)));
    }
    agrees(&python, "vllm_runner", &trained, &pairs);
}

/// Drafters with heads of another width than the target's.
const WIDE: [(&str, &str, &str); 3] = [
    ("eagle3", "wide", "[drafter]\nd_head = 64\n"),
    (
        "peagle",
        "wide-together",
        "[drafter]\nd_head = 64\nlayers = 2\nmask_token = 0\n\n[objective]\ndraft_tokens = 5\n",
    ),
    (
        "dflash",
        "wide-block",
        "[drafter]\nd_head = 64\nlayers = 1\nblock_size = 5\nmask_token = 0\n\n[objective]\nanchors = 32\nlabel_weight = 0.0\nteacher_weight = 1.0\n",
    ),
];

/// EAGLE-1 whose queries, keys and values have a bias.
const BIASED: (&str, &str, &str) = ("eagle1", "biased", "[drafter]\nqkv_bias = true\n");

#[test]
fn vllm_accepts_what_this_program_accepts_of_heads_of_another_width_and_of_biases() {
    let Some(python) = python("SPECTRAIN_VLLM") else {
        return;
    };
    let trained = trained(&[&WIDE[..], &[BIASED]].concat());
    let job = |drafter, speculative: Value| {
        let job = json!({ "speculative": speculative });
        Job::new(drafter, job, Last::Whole)
    };
    let parallel = json!({"method": "eagle3", "parallel_drafting": true});
    let pairs = [
        job("runs/wide/export/drafter", json!({"method": "eagle3"})),
        job("runs/wide-together/export/drafter", parallel),
        job(
            "runs/wide-block/export/drafter",
            json!({"method": "dflash"}),
        ),
        job("runs/biased/export/drafter", json!({"method": "eagle"})),
    ];
    agrees(&python, "vllm_runner", &trained, &pairs);
}

#[test]
fn sglang_accepts_what_this_program_accepts_of_heads_of_another_width_and_of_biases() {
    let Some(python) = python("SPECTRAIN_SGLANG") else {
        return;
    };
    let trained = trained(&[WIDE[0], BIASED]);
    let job = |drafter, algorithm: &str| {
        let job = json!({ "algorithm": algorithm });
        Job::new(drafter, job, Last::Whole)
    };
    let pairs = [
        job("runs/wide/export/drafter", "EAGLE3"),
        job("runs/biased/export/drafter", "EAGLE"),
    ];
    agrees(&python, "sglang_runner", &trained, &pairs);
}

/// Of the architecture that goes with MTP layers: a language model of biases and without norms of heads, which has learned
/// from the first target.
const SECOND: (&str, &str, &str) = (
    "distillspec",
    "second",
    "[drafter]\nmodel = \"drawn\"\n\n[objective]\nlabel_weight = 0.0\nteacher_weight = 1.0\n",
);

/// The folder of that target.
const SECOND_TARGET: &str = "runs/second/export/drafter";

/// What an engine is to do with the layer of [`with_layer`] by itself, and in the target's checkpoint.
fn by_itself_and_in_place(alone: Value, within: Value) -> [Job; 2] {
    let job = |target, drafter, job| Job {
        target,
        ..Job::new(drafter, job, Last::Whole)
    };
    [
        job(SECOND_TARGET, "runs/mtp/export/drafter", alone),
        job("whole", "whole", within),
    ]
}

/// That target with a layer, by itself and in the target's checkpoint, which is in `whole`.
fn with_layer((kind, name, more): (&str, &str, &str)) -> (Workspace, Vec<Vec<u64>>) {
    let trained = trained(&[]);
    let workspace = &trained.0;
    workspace.write_qwen2("drawn", |spec| {
        spec.layers = 2;
        (spec.d_model, spec.d_ff, spec.vocab) = (64, 128, VOCAB as usize);
        (spec.heads, spec.kv_heads, spec.d_head) = (2, 1, 32);
    });
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let [from, to] = [FIRST, "drawn"].map(|folder| workspace.path(folder).join(name));
        std::fs::copy(from, to).unwrap();
    }
    let (second, named, of_second) = SECOND;
    workspace.write("other.toml", recipe(second, named, of_second));
    workspace.run(&["recipe", "other.toml"]).succeeded();
    let for_second = recipe(kind, name, more).replace(FIRST, SECOND_TARGET);
    workspace.write("other.toml", for_second);
    workspace.run(&["recipe", "other.toml"]).succeeded();
    let words = ["export", name, "--into", SECOND_TARGET, "--out", "whole"];
    workspace.run(&words).succeeded();
    trained
}

#[test]
fn vllm_accepts_what_this_program_accepts_of_an_mtp_layer() {
    let Some(python) = python("SPECTRAIN_VLLM") else {
        return;
    };
    let trained = with_layer(MTP);
    let overrides = json!({"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1});
    let alone = json!({"speculative": {"method": "mtp"}, "overrides": overrides});
    let within = json!({"speculative": {"method": "mtp", "model": null}});
    let pairs = by_itself_and_in_place(alone, within);
    agrees(&python, "vllm_runner", &trained, &pairs);
}

#[test]
fn sglang_accepts_what_this_program_accepts_of_a_layer_in_its_targets_checkpoint() {
    let Some(python) = python("SPECTRAIN_SGLANG") else {
        return;
    };
    let trained = with_layer(MTP_AFTER_NORM);
    let alone = json!({"algorithm": "EAGLE"});
    let within = json!({"algorithm": "NEXTN", "own_layer": true});
    let pairs = by_itself_and_in_place(alone, within);
    agrees(&python, "sglang_runner", &trained, &pairs);
}

/// Parts of the block drafters that llama.cpp runs besides; DFlash 2 with so few candidates that it has room for their scores.
const DFLASH_2: (&str, &str, &str) = (
    "dflash",
    "dflash2",
    "[drafter]\nlayers = 2\nblock_size = 5\nmask_token = 0\nconv_taps = 2\nselector_rank = 16\nselector_top_k = 6\n\n[objective]\nanchors = 32\nlabel_weight = 0.0\nteacher_weight = 1.0\nselector_weight = 0.1\ninject = false\n",
);
const DSPARK: (&str, &str, &str) = (
    "dflash",
    "dspark",
    "[drafter]\nlayers = 2\nblock_size = 4\nmask_token = 0\nsample_from_anchor = true\nmarkov_rank = 16\nconfidence = true\n\n\
     [objective]\nanchors = 32\nlabel_weight = 0.1\nteacher_weight = 1.8\ndivergence = \"tv\"\n",
);
const DFLASH_WIDE: (&str, &str, &str) = (
    "dflash",
    "dflash",
    "[drafter]\nlayers = 2\nblock_size = 5\nmask_token = 0\n\n[objective]\nanchors = 32\nlabel_weight = 0.0\nteacher_weight = 1.0\n",
);

#[test]
fn llama_cpp_accepts_what_this_program_accepts() {
    let Some(python) = python("SPECTRAIN_VLLM") else {
        return;
    };
    if std::env::var_os("SPECTRAIN_LLAMA_CPP").is_none() {
        eprintln!(
            "skipped: `SPECTRAIN_LLAMA_CPP` names no llama.cpp; see `tests/engines/README.md`"
        );
        return;
    }
    let trained = trained(&[LANGUAGE_MODEL, DFLASH_WIDE, DFLASH_2, DSPARK]);
    let kind = |drafter, name: &str| Job::new(drafter, json!({ "type": name }), Last::Cut);
    let pairs = [
        kind("runs/eagle3/export/drafter", "draft-eagle3"),
        kind("runs/small/export/drafter", "draft-simple"),
        kind("runs/dflash/export/drafter", "draft-dflash"),
        kind("runs/dflash2/export/drafter", "draft-dflash"),
        kind("runs/dspark/export/drafter", "draft-dspark"),
    ];
    agrees(&python, "llama_cpp_runner", &trained, &pairs);
}

#[test]
fn sglang_accepts_what_this_program_accepts() {
    let Some(python) = python("SPECTRAIN_SGLANG") else {
        return;
    };
    let trained = trained(&[EAGLE1, DEEP, MTP_AFTER_NORM, LANGUAGE_MODEL]);
    let algorithm =
        |drafter, name: &str| Job::new(drafter, json!({ "algorithm": name }), Last::Whole);
    let pairs = [
        algorithm("runs/eagle3/export/drafter", "EAGLE3"),
        algorithm("runs/deep/export/drafter", "EAGLE3"),
        algorithm("runs/first/export/drafter", "EAGLE"),
        algorithm("runs/mtp/export/drafter", "EAGLE"),
        Job {
            without_first: true,
            ..algorithm("runs/small/export/drafter", "STANDALONE")
        },
    ];
    agrees(&python, "sglang_runner", &trained, &pairs);
}
