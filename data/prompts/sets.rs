//! The sets of prompts that are known by name: where their files are, and what their columns are.
//!
//! Nothing of the data is in this repository: files come from the hub, or from whoever has them. What stands around the
//! problems of GSM8K and MATH-500 and the functions of HumanEval is what DFlash's benchmark
//! (<https://github.com/z-lab/dflash>) puts there.

use spectrain_checkpoints::near::did_you_mean;

use crate::prompts::ask::{Ask, Fields, Placeholder};

/// A set of prompts that is known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownSet {
    /// By which it is asked for.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The licence that its authors name.
    pub licence: &'static str,
    /// Where its file is; none where only its authors' own page has it.
    pub hub: Option<HubFile>,
    /// What is asked.
    pub ask: KnownAsk,
    /// The column with the category.
    pub category: Option<&'static str>,
    /// The column with the language.
    pub language: Option<&'static str>,
    /// What stands in the place of questions that are not there.
    pub placeholder: Option<Placeholder>,
}

/// A file of a dataset on the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubFile {
    /// `owner/name`.
    pub repository: &'static str,
    /// Its path there, by which the split is chosen.
    pub file: &'static str,
}

/// What of a row is asked; see [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownAsk {
    /// One text, with columns in it.
    Text(&'static str),
    /// The user's turns in the first of these columns that is there.
    Turns(&'static [&'static str]),
}

/// What mathematical problems ask for.
macro_rules! step_by_step {
    ($column:literal) => {
        concat!(
            "{",
            $column,
            "}\nPlease reason step by step, and put your final answer within \\boxed{}."
        )
    };
}

/// The columns of the user's turns: FastChat's, and that of its copy on the hub.
const TURNS: KnownAsk = KnownAsk::Turns(&["turns", "prompt"]);

/// What SPEED-Bench has in place of the questions that it may not pass on.
const DEFERRED: Placeholder = Placeholder {
    text: "FULL BENCHMARK DATA SHOULD BE FETCHED",
    remedy: "the authors' `prepare_data.py` (`examples/specdec_bench` of NVIDIA Model Optimizer) fetches the questions; \
             name the file that it writes, as in `speed-bench=PATH`",
};

/// What the sets of SPEED-Bench have in common.
const SPEED_BENCH: KnownSet = KnownSet {
    name: "speed-bench",
    about: "880 conversations of 11 categories, the qualitative split; some of several turns",
    licence: "NVIDIA Evaluation Dataset License: to evaluate with, not to pass on",
    hub: speed_bench("qualitative/test-00000-of-00001.parquet"),
    ask: TURNS,
    category: Some("category"),
    language: None,
    placeholder: Some(DEFERRED),
};

const fn speed_bench(file: &'static str) -> Option<HubFile> {
    let repository = "nvidia/SPEED-Bench";
    Some(HubFile { repository, file })
}

/// A throughput split of SPEED-Bench.
const fn throughput(name: &'static str, about: &'static str, file: &'static str) -> KnownSet {
    KnownSet {
        name,
        about,
        hub: speed_bench(file),
        ..SPEED_BENCH
    }
}

/// A set of one question a row, without labels.
const fn questions(name: &'static str, repository: &'static str, file: &'static str) -> KnownSet {
    KnownSet {
        name,
        about: "",
        licence: "",
        hub: Some(HubFile { repository, file }),
        ask: KnownAsk::Text(""),
        category: None,
        language: None,
        placeholder: None,
    }
}

/// A file of the prompts that speculators' `evaluate.py` sends unless told otherwise: the column `prompt`, one turn a row. The card
/// says of which benchmark each file is.
const fn speculators(name: &'static str, about: &'static str, file: &'static str) -> KnownSet {
    KnownSet {
        about,
        licence: "Apache 2.0; that of HumanEval is MIT",
        ask: KnownAsk::Text("{prompt}"),
        ..questions(name, "RedHatAI/speculator_benchmarks", file)
    }
}

/// All of them.
pub const KNOWN: &[KnownSet] = &[
    KnownSet {
        about: "1319 school problems in words, the test split",
        licence: "MIT",
        ask: KnownAsk::Text(step_by_step!("question")),
        ..questions("gsm8k", "openai/gsm8k", "main/test-00000-of-00001.parquet")
    },
    KnownSet {
        about: "500 competition problems; the subject is the category",
        licence: "not stated; MATH itself is MIT",
        ask: KnownAsk::Text(step_by_step!("problem")),
        category: Some("subject"),
        ..questions("math-500", "HuggingFaceH4/MATH-500", "test.jsonl")
    },
    KnownSet {
        about: "164 Python functions to be completed",
        licence: "MIT",
        ask: KnownAsk::Text(
            "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```",
        ),
        ..questions(
            "humaneval",
            "openai/openai_humaneval",
            "openai_humaneval/test-00000-of-00001.parquet",
        )
    },
    KnownSet {
        about: "257 small Python tasks, the sanitized test split",
        licence: "CC BY 4.0",
        ask: KnownAsk::Text("{prompt}"),
        ..questions(
            "mbpp",
            "google-research-datasets/mbpp",
            "sanitized/test-00000-of-00001.parquet",
        )
    },
    KnownSet {
        about: "52 002 instructions; training data of many models, so no test of what is new",
        licence: "CC BY-NC 4.0",
        ask: KnownAsk::Text("{instruction}\n\n{input}"),
        ..questions(
            "alpaca",
            "tatsu-lab/alpaca",
            "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",
        )
    },
    KnownSet {
        about: "11 490 news articles to be summarised, version 3.0.0, the test split",
        licence: "Apache 2.0",
        ask: KnownAsk::Text("Summarize: {article}"),
        ..questions(
            "cnn-dailymail",
            "abisee/cnn_dailymail",
            "3.0.0/test-00000-of-00001.parquet",
        )
    },
    KnownSet {
        about: "80 conversations of two turns in 8 categories; also FastChat's own `question.jsonl`",
        licence: "Apache 2.0",
        ask: TURNS,
        category: Some("category"),
        ..questions(
            "mt-bench",
            "HuggingFaceH4/mt_bench_prompts",
            "raw/question.jsonl",
        )
    },
    KnownSet {
        about: "480 conversations, some of two turns; `data/spec_bench/question.jsonl` of <https://github.com/hemingkx/Spec-Bench>",
        licence: "Apache 2.0",
        hub: None,
        ask: TURNS,
        category: Some("category"),
        ..questions("spec-bench", "", "")
    },
    SPEED_BENCH,
    throughput(
        "speed-bench-1k",
        "1536 prompts of about 1000 tokens; how predictable the answer is, is the category",
        "throughput_1k/test-00000-of-00001.parquet",
    ),
    throughput(
        "speed-bench-2k",
        "as many of about 2000 tokens",
        "throughput_2k/test-00000-of-00001.parquet",
    ),
    throughput(
        "speed-bench-8k",
        "as many of about 8000 tokens",
        "throughput_8k/test-00000-of-00001.parquet",
    ),
    throughput(
        "speed-bench-16k",
        "as many of about 16 000 tokens",
        "throughput_16k/test-00000-of-00001.parquet",
    ),
    throughput(
        "speed-bench-32k",
        "as many of about 32 000 tokens",
        "throughput_32k/test-00000-of-00001.parquet",
    ),
    speculators(
        "speculators-humaneval",
        "the default prompts of speculators' `evaluate.py`: functions of HumanEval, as they stand there",
        "HumanEval.jsonl",
    ),
    speculators(
        "speculators-math-reasoning",
        "the same: problems in words, of Spec-Bench",
        "math_reasoning.jsonl",
    ),
    speculators(
        "speculators-qa",
        "the same: questions, of Spec-Bench",
        "qa.jsonl",
    ),
    speculators(
        "speculators-question",
        "the same: MT-Bench, one turn each",
        "question.jsonl",
    ),
    speculators(
        "speculators-rag",
        "the same: questions with retrieved passages, of Spec-Bench",
        "rag.jsonl",
    ),
    speculators(
        "speculators-summarization",
        "the same: news articles to be summarised, of Spec-Bench",
        "summarization.jsonl",
    ),
    speculators(
        "speculators-tool-call",
        "the same: questions for whose answers tools are to be called",
        "tool_call.jsonl",
    ),
    speculators(
        "speculators-translation",
        "the same: German to be translated into English, of Spec-Bench",
        "translation.jsonl",
    ),
    speculators(
        "speculators-writing",
        "the same: texts to be written, of Spec-Bench",
        "writing.jsonl",
    ),
];

/// The set of this name.
pub fn find(name: &str) -> Option<&'static KnownSet> {
    KNOWN.iter().find(|set| set.name == name)
}

/// All names, for a message.
pub fn names() -> String {
    let names: Vec<&str> = KNOWN.iter().map(|set| set.name).collect();
    names.join(", ")
}

/// The question behind a message about a set that is not there, where one has a similar name; else empty.
pub fn near(given: &str) -> String {
    did_you_mean(given, KNOWN.iter().map(|set| set.name))
}

impl KnownSet {
    /// What the columns of its files are.
    pub fn fields(&self) -> Fields {
        let owned = |name: &str| name.to_owned();
        Fields {
            ask: match self.ask {
                KnownAsk::Text(text) => Ask::Text(text.to_owned()),
                KnownAsk::Turns(columns) => {
                    Ask::Turns(columns.iter().copied().map(owned).collect())
                }
            },
            category: self.category.map(owned),
            language: self.language.map(owned),
            placeholder: self.placeholder,
        }
    }
}
