//! A folder for one test: a small target with random weights, conversations for it, a recipe, and the program run there.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spectrain::families::registry::open_drafter;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_folder};
use spectrain_data::tokenizer::train_byte_level_bpe;
use spectrain_models::device::test_device;
use spectrain_models::weights::export;
use spectrain_models::{
    Bias, RandomWeights, Scope, TargetSpec, Transformer, TransformerConfig, load_target,
};

use crate::tiny;

/// Tokens of the target and of its tokenizer.
pub const VOCAB: usize = 300;
/// Conversations to train on.
pub const CONVERSATIONS: usize = 40;

/// Trains, exports and judges in about a second.
pub const RECIPE: &str = r#"recipe = "eagle3"
name = "run"

[target]
model = "target"

[data]
train = "train.jsonl"
eval = "eval.jsonl"
max_length = 64

[features]
samples_per_shard = 16

[drafter]
draft_vocab = 256

[objective]
draft_steps = 2

[train]
steps = 6
batch_tokens = 128
learning_rate = 1e-3
warmup_steps = 2
log_every = 2
validate_every = 3
validate_samples = 4
decode_prompts = 2
decode_tokens = 8
save_every = 1

[evaluate]
prompts = 2
temperatures = [0.0]
draft_lengths = [2]
max_new_tokens = 8
"#;

/// How a plan ends that is refused.
pub const REFUSED: &str = "\nrefused: the error says why\n";

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Files of a folder and everything under it, by their path in it.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

pub struct Workspace {
    root: tempfile::TempDir,
}

/// How the program ended and what it said.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Workspace {
    /// With `recipe.toml` and nothing else.
    pub fn of(recipe: &str) -> Self {
        let workspace = Self {
            root: tempfile::tempdir().unwrap(),
        };
        workspace.write("recipe.toml", recipe);
        workspace
    }

    /// With [`RECIPE`] and all that it reads.
    pub fn new() -> Self {
        let workspace = Self::of(RECIPE);
        workspace.write_target("target", VOCAB);
        workspace.write_conversations("train.jsonl", 0, CONVERSATIONS);
        workspace.write_conversations("eval.jsonl", CONVERSATIONS, 4);
        workspace
    }

    /// With [`RECIPE`] run to its end.
    pub fn finished() -> Self {
        let workspace = Self::new();
        workspace.run(&["recipe", "recipe.toml"]).succeeded();
        workspace
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).unwrap()
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("`{name}`: {error}"))
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.bytes(name)).unwrap()
    }

    /// Configuration and tensors of a model's folder.
    pub fn contents(&self, folder: &str) -> (Value, Vec<NamedTensor>) {
        let folder = ModelFolder::open(self.path(folder)).unwrap();
        let tensors = folder
            .tensors()
            .map(|info| folder.read(&info.name).unwrap());
        (folder.config().clone(), tensors.collect())
    }

    /// Fails unless a folder holds a drafter for the target, whole.
    pub fn open_drafter(&self, folder: &Path) {
        let made = self.path("runs/run/synthetic/target");
        let target = if made.exists() {
            made
        } else {
            self.path("target")
        };
        let target = ModelFolder::open(target).unwrap();
        let device = test_device();
        let target = load_target(&target, &device, DType::F32).unwrap().parts();
        open_drafter(folder, &target, &device).unwrap();
    }

    /// The manifest of a stage of the run `run`.
    pub fn manifest(&self, stage: &str) -> Value {
        self.json(&format!("runs/run/{stage}/manifest.json"))
    }

    pub fn files(&self, folder: &str) -> Files {
        let mut files = Files::new();
        let root = self.path(folder);
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(&root).unwrap().to_owned();
                    files.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
        files
    }

    /// The program with these words, to run in this folder. It asks no network and reads no one's settings.
    pub fn command(&self, words: &[&str]) -> Command {
        self.in_folder(Command::new(env!("CARGO_BIN_EXE_spectrain")), words)
    }

    pub fn run(&self, words: &[&str]) -> Outcome {
        Outcome::of(self.command(words))
    }

    /// Runs the program with words that hold no spaces.
    pub fn run_line(&self, line: impl AsRef<str>) -> Outcome {
        self.run(&line.as_ref().split(' ').collect::<Vec<_>>())
    }

    /// Runs `recipe.toml` with these settings.
    pub fn run_recipe(&self, settings: &[&str]) -> Outcome {
        let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
        let words = ["recipe", "recipe.toml"].into_iter().chain(settings);
        self.run(&words.collect::<Vec<_>>())
    }

    /// Starts the program, whose standard error is kept.
    pub fn start(&self, words: &[&str]) -> Child {
        let mut command = self.command(words);
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Makes a finished stage of the run `run` one that was interrupted.
    pub fn unfinish(&self, stage: &str) {
        let mut manifest = self.manifest(stage);
        manifest["status"] = "started".into();
        // With it the manifest would be one that was changed.
        manifest.as_object_mut().unwrap().remove("sha256");
        let path = format!("runs/run/{stage}/manifest.json");
        self.write(&path, manifest.to_string());
    }

    /// Runs the program where no file may grow over `kib` KiB, as on a disk that is full.
    pub fn run_with_file_limit(&self, kib: usize, words: &[&str]) -> Outcome {
        let mut shell = Command::new("bash");
        let script = format!("ulimit -f {kib}; exec \"$0\" \"$@\"");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_spectrain")]);
        Outcome::of(self.in_folder(shell, words))
    }

    fn in_folder(&self, mut command: Command, words: &[&str]) -> Command {
        command
            .args(words)
            .current_dir(self.root.path())
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", self.path("hub"))
            .env("RUST_BACKTRACE", "0")
            .env_remove("RUST_LOG")
            .env_remove("WORLD_SIZE");
        command
    }

    /// A target with random weights, a tokenizer of [`VOCAB`] tokens and a chat template.
    pub fn write_target(&self, name: &str, vocab: usize) {
        self.write_target_of(name, 7, |spec| spec.vocab = vocab);
    }

    /// A target of changed sizes, with weights drawn from `seed`.
    pub fn write_target_of(&self, name: &str, seed: u64, change: impl FnOnce(&mut TargetSpec)) {
        self.write_model(name, seed, tiny::config(), change);
    }

    /// A model of Qwen2's architecture of changed sizes, with drawn weights.
    pub fn write_qwen2(&self, name: &str, change: impl FnOnce(&mut TargetSpec)) {
        let config = TransformerConfig {
            qkv_bias: Bias::With,
            head_norm: false,
            ..tiny::config()
        };
        self.write_model(name, 7, config, change);
    }

    fn write_model(
        &self,
        name: &str,
        seed: u64,
        mut config: TransformerConfig,
        change: impl FnOnce(&mut TargetSpec),
    ) {
        config.spec.vocab = VOCAB;
        change(&mut config.spec);
        config.windows = vec![None; config.spec.layers];
        let mut random = RandomWeights::new(seed);
        let device = test_device();
        let mut scope = Scope::root(&mut random, &device, DType::F32);
        let model = Transformer::new(&mut scope, config.clone()).unwrap();
        let mut tensors = export(&model);
        for tensor in &mut tensors {
            if !tensor.name.starts_with("lm_head.") {
                tensor.name.insert_str(0, "model.");
            }
        }
        let folder = self.path(name);
        write_folder(&folder, &config.to_json().unwrap(), &tensors, &[]).unwrap();
        let texts = (0..50).map(|i| format!("count to {i}: one two three"));
        let special = ["<|im_start|>", "<|im_end|>"];
        let tokenizer = train_byte_level_bpe(texts, VOCAB, &special).unwrap();
        tokenizer.save(&folder).unwrap();
        std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    }

    /// Conversations numbered from `first`.
    pub fn write_conversations(&self, name: &str, first: usize, count: usize) {
        let rows = (first..first + count).map(|i| conversation(i, &format!("one two three {i}")));
        self.write(name, rows.collect::<Vec<_>>().join("\n"));
    }
}

/// A line of a dataset.
pub fn conversation(number: usize, answer: &str) -> String {
    let messages = json!([
        {"role": "user", "content": format!("count to {number}")},
        {"role": "assistant", "content": answer},
    ]);
    json!({ "messages": messages }).to_string()
}

/// More steps than any machine takes before the program is stopped: whatever the test waits for comes before the end.
pub const ENDLESS: &str = "100000";

/// Waits until `found`, however long that takes. The program must be one that does not end by itself before that.
pub fn wait_for(child: &mut Child, found: impl Fn() -> bool) {
    while !found() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "it ended too early: {ended:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal, such as `-INT`.
pub fn signal(child: &Child, signal: &str) {
    let words = [signal, &child.id().to_string()];
    assert!(Command::new("kill").args(words).status().unwrap().success());
}

impl Outcome {
    fn of(mut command: Command) -> Self {
        Self::from(command.output().unwrap())
    }

    /// Of a program that must not wait for anything: it fails here where it goes on for minutes.
    pub fn of_ending(mut command: Command) -> Self {
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if started.elapsed() > Duration::from_secs(300) {
                child.kill().unwrap();
                panic!("{command:?} waits");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Self::from(child.wait_with_output().unwrap())
    }

    pub fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// It ended with 1, and its one message of an error has all of `expected`.
    pub fn failed(self, expected: &[&str]) -> Self {
        self.ended(1, expected)
    }

    /// It ended with 2: what was asked for makes no sense.
    pub fn misused(self, expected: &[&str]) -> Self {
        self.ended(2, expected)
    }

    /// It ended with 2 at the command line, which says this.
    pub fn misused_by_usage(self, expected: &[&str]) -> Self {
        assert_eq!(self.code, Some(2), "{self:#?}");
        for expected in expected {
            assert!(self.stderr.contains(expected), "no `{expected}`: {self:#?}");
        }
        self
    }

    /// It ended with 130: it was interrupted.
    pub fn interrupted(self, expected: &[&str]) -> Self {
        self.ended(130, expected)
    }

    fn ended(self, code: i32, expected: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        let errors = || {
            self.stderr
                .lines()
                .filter(|line| line.starts_with("error: "))
        };
        assert_eq!(errors().count(), 1, "not one error: {self:#?}");
        let from = self.stderr.find("error: ").unwrap();
        for expected in expected {
            let found = self.stderr[from..].contains(expected);
            assert!(found, "no `{expected}`: {self:#?}");
        }
        self
    }
}
