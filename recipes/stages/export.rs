//! The trained drafter as serving engines load it, checked after it was written.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, seal};
use spectrain_eval::{DecodeSettings, VerifierChoice};
use spectrain_models::{
    Distribution, Draft, DraftRequest, DraftShape, Features, Proposal, Proposer, Sampling,
};

use super::evaluate::spread;
use super::{EXPORTED, StageContext, TRAINED, prepare};
use crate::judge::Judge;
use crate::registry::{Trained, Writing, open_drafter};
use crate::tables::Engine;

/// Prompts that are decoded with the trained and with the exported drafter, and tokens of each.
const COMPARED_PROMPTS: usize = 8;
const COMPARED_TOKENS: usize = 64;
/// Prompts of a conversion, which has no device of its own and may have a large target.
const CONVERTED_PROMPTS: usize = 2;
/// Tokens of each where drafts are compared number by number.
const DRAWN_TOKENS: usize = 16;
/// Length of the draft in these comparisons.
pub const COMPARED_DRAFT: usize = 5;
/// Share of the trained drafter's accepted tokens that the exported one must keep when its weights were rounded.
const KEPT_WHEN_ROUNDED: f64 = 0.8;
/// Largest difference between two probabilities that are the same, relative to the larger one: devices may add in any
/// order.
const SAME: f32 = 1e-3;

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let export = &context.recipe.export;
    let trained_folder = context.run.path().join(TRAINED);
    let mut judge = Judge::open(
        &context.target_folder()?,
        &trained_folder,
        &context.device,
        context.dtype,
    )?;
    let provenance = json!({
        "spectrain": env!("CARGO_PKG_VERSION"),
        "recipe": context.recipe.json,
        "objective": context.recipe.json["objective"],
        "target": {"model": context.target_name()?, "sha256": context.target_sha256()?},
        "data": {"sha256": context.run.sha256(&context.folder("prepare").join("train/tokens.json"))?},
        "training": training(context)?,
        "trained": context.run.sha256(&trained_folder)?,
    });
    let prompts = spread(prepare::prompts(context.run)?, COMPARED_PROMPTS);
    let trained = judge.drafter.rounded(DType::F32)?;
    let before = accepted(&judge, &prompts)?;
    let length = draft_length(context);
    let name = context.target_name()?;
    let mut exported: Vec<(String, f64, Vec<String>)> = Vec::new();
    for (folder, engines) in folders(&export.to) {
        let path = context.run.path().join(&folder);
        let writing = Writing {
            folder: &path,
            dtype: export.dtype.dtype(),
            target: &name,
            draft_length: length,
            provenance: &provenance,
        };
        write(trained.as_ref(), engines[0], &writing)?;
        let target = judge.target.parts();
        judge.drafter = open_drafter(&path, &target, &context.device)?;
        verify(&mut judge, trained.as_ref(), &writing, &prompts)?;
        let after = accepted(&judge, &prompts)?;
        compare(&before, &after, writing.dtype)?;
        let lines = launch_lines(judge.drafter.as_ref(), &engines, &writing)?;
        context.output.say(format!("export: {}", path.display()));
        for line in &lines {
            context.output.say(format!("  {line}"));
        }
        exported.push((folder, after.tau(), lines));
    }
    let (first, further) = exported.split_first().context("nothing was exported")?;
    let mut summary = json!({
        "folder": first.0,
        "to": export.to,
        "dtype": export.dtype,
        "tau_trained": before.tau(),
        "tau_exported": first.1,
        "launch": first.2,
    });
    if !further.is_empty() {
        summary["further"] = further
            .iter()
            .map(|(folder, tau, lines)| json!({"folder": folder, "tau_exported": tau, "launch": lines}))
            .collect();
    }
    Ok(summary)
}

/// What the stage `train` says of the weights it kept.
fn training(context: &StageContext) -> Result<Value> {
    let manifest = context.run.manifest("train")?;
    let summary = manifest.map_or(Value::Null, |manifest| manifest.summary);
    Ok(json!({"step": summary["exported_step"], "best": summary["fit"]["best"]}))
}

fn draft_length(context: &StageContext) -> usize {
    let lengths = &context.recipe.evaluate.draft_lengths;
    lengths.first().copied().unwrap_or(COMPARED_DRAFT)
}

/// The folders to write, within the run, and whom each is for. The first is the one that is evaluated.
fn folders(to: &[Engine]) -> Vec<(String, Vec<Engine>)> {
    let (others, usual): (Vec<Engine>, Vec<Engine>) = to
        .iter()
        .partition(|engine| **engine == Engine::Speculators);
    let mut folders = Vec::new();
    // It is there whatever is asked for: other stages and commands read it.
    folders.push((
        EXPORTED.to_owned(),
        if usual.is_empty() {
            vec![Engine::Vllm]
        } else {
            usual
        },
    ));
    if !others.is_empty() {
        folders.push((format!("{EXPORTED}-speculators"), vec![Engine::Speculators]));
    }
    folders
}

/// Writes a drafter's folder for an engine.
fn write(drafter: &dyn Trained, engine: Engine, writing: &Writing) -> Result<()> {
    match engine {
        Engine::Speculators => drafter.write_for(engine, writing),
        _ => drafter.write(writing.folder, writing.dtype, writing.provenance),
    }
}

/// The drafter in `trained`, for an engine.
pub struct Conversion<'a> {
    /// The folder it is in.
    pub trained: &'a Path,
    /// The target's folder.
    pub target: PathBuf,
    /// The engine.
    pub engine: Engine,
    /// What to write, and where.
    pub writing: Writing<'a>,
}

impl Conversion<'_> {
    /// Writes the folder, checks that what is read back is what was there, and returns the commands that serve it.
    pub fn run(&self) -> Result<Vec<String>> {
        let device = burn::prelude::Device::flex();
        let mut judge = Judge::open(&self.target, self.trained, &device, DType::F32)?;
        let trained = judge.drafter.rounded(DType::F32)?;
        write(trained.as_ref(), self.engine, &self.writing)?;
        let target = judge.target.parts();
        judge.drafter = open_drafter(self.writing.folder, &target, &device)?;
        let prompts = judge.generated_prompts(CONVERTED_PROMPTS)?;
        verify(&mut judge, trained.as_ref(), &self.writing, &prompts)?;
        launch_lines(judge.drafter.as_ref(), &[self.engine], &self.writing)
    }
}

fn launch_lines(
    drafter: &dyn Trained,
    engines: &[Engine],
    writing: &Writing,
) -> Result<Vec<String>> {
    let folder = writing.folder;
    if engines.contains(&Engine::Speculators) {
        return Ok(spectrain_checkpoints::eagle3::speculators::launch_lines(
            folder,
        ));
    }
    let mut lines = drafter.launch_lines(folder, writing.target, writing.draft_length)?;
    // Remarks are for everybody.
    let of = |line: &str| match line {
        line if line.contains("sglang") => Engine::Sglang,
        line if line.contains("transformers") => Engine::Hf,
        _ => Engine::Vllm,
    };
    lines.retain(|line| line.starts_with('#') || engines.contains(&of(line)));
    if let Some(remark) = misleading(drafter.kind(), folder) {
        lines.insert(0, remark);
    }
    Ok(lines)
}

/// Words in a path by which vLLM knows the method, whatever the command says, and the kinds that they are right for.
const TELLTALES: [(&str, &str); 4] = [
    ("eagle-", "eagle1"),
    ("eagle3", "eagle3"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
];

fn misleading(kind: &str, folder: &Path) -> Option<String> {
    let path = folder.display().to_string().to_lowercase();
    let wrong = |(word, right): &&(&str, &str)| path.contains(word) && *right != kind;
    let (word, _) = TELLTALES.iter().find(wrong)?;
    Some(format!(
        "# vLLM may take a folder whose path has `{word}` in it for another kind of drafter: serve it from another path"
    ))
}

/// Fails unless the drafter that `judge` has read back is `trained`, rounded: every tensor bit for bit, the vocabulary, the
/// captured layers, and the probabilities of what it drafts, which show a setting that no tensor shows.
fn verify(
    judge: &mut Judge,
    trained: &dyn Trained,
    writing: &Writing,
    prompts: &[Vec<u32>],
) -> Result<()> {
    let rounded = trained.rounded(writing.dtype)?;
    let place = writing.folder.display();
    let same = check_tensors(&rounded.tensors(), &judge.drafter.tensors());
    let complete = same.with_context(|| format!("the drafter in `{place}`"))?;
    if judge.drafter.vocabulary() != trained.vocabulary() {
        bail!("the drafter in `{place}` has another vocabulary than the trained one");
    }
    let (expected, found) = (trained.capture()?, judge.drafter.capture()?);
    if expected != found {
        bail!(
            "the drafter in `{place}`: captured layers: expected {:?}, found {:?}",
            expected.layers,
            found.layers
        );
    }
    // A head that was written out has been rounded, and the target's own has not.
    if !complete {
        return Ok(());
    }
    let found = drawn(judge, prompts)?;
    let read_back = std::mem::replace(&mut judge.drafter, rounded);
    let expected = drawn(judge, prompts);
    judge.drafter = read_back;
    match same_drafts(&expected?, &found) {
        true => Ok(()),
        false => bail!(
            "the drafter in `{place}` drafts otherwise than the trained one with its weights rounded"
        ),
    }
}

/// Fails unless every tensor of `expected` is in `found`, bit for bit. Says whether these are all; a head that a layout
/// wants written out may be more.
fn check_tensors(expected: &[NamedTensor], found: &[NamedTensor]) -> Result<bool> {
    let of = |name: &str| found.iter().find(|tensor| tensor.name == name);
    for tensor in expected {
        match of(&tensor.name) {
            None => bail!("tensor `{}` is missing", tensor.name),
            Some(found) if found != tensor => {
                bail!("tensor `{}` is not the one that was trained", tensor.name)
            }
            Some(_) => {}
        }
    }
    let known = |name: &str| name == "lm_head.weight" || expected.iter().any(|t| t.name == name);
    if let Some(other) = found.iter().find(|tensor| !known(&tensor.name)) {
        bail!("tensor `{}` was not trained", other.name);
    }
    Ok(found.len() == expected.len())
}

/// What greedy decoding made of some prompts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decoded {
    /// Tokens drafted and accepted, pass by pass.
    pub(crate) accepted: Vec<usize>,
}

impl Decoded {
    pub(crate) fn total(&self) -> usize {
        self.accepted.iter().sum()
    }

    pub(crate) fn tau(&self) -> f64 {
        1.0 + self.total() as f64 / self.accepted.len().max(1) as f64
    }
}

pub(crate) fn accepted(judge: &Judge, prompts: &[Vec<u32>]) -> Result<Decoded> {
    let mut session = judge.drafter.session();
    let accepted = decode(judge, session.as_mut(), prompts, Sampling::GREEDY)?;
    Ok(Decoded { accepted })
}

/// Tokens accepted, pass by pass.
fn decode(
    judge: &Judge,
    proposer: &mut dyn Proposer,
    prompts: &[Vec<u32>],
    sampling: Sampling,
) -> Result<Vec<usize>> {
    let settings = DecodeSettings {
        max_new_tokens: match sampling.is_greedy() {
            true => COMPARED_TOKENS,
            false => DRAWN_TOKENS,
        },
        draft: DraftShape::Chain {
            length: COMPARED_DRAFT,
        },
        sampling,
        stop: judge.stop.clone(),
    };
    let verifier = VerifierChoice::Exact.at(&settings.sampling);
    let mut accepted = Vec::new();
    for prompt in prompts {
        let mut rng = StdRng::seed_from_u64(0);
        let generation = judge
            .decoder()
            .generate(proposer, verifier, prompt, &settings, &mut rng)?;
        accepted.extend(generation.passes.iter().map(|pass| pass.accepted));
    }
    Ok(accepted)
}

/// A proposer that keeps what it drafts.
struct Recorder {
    inner: Box<dyn Proposer>,
    drafts: Vec<Vec<u32>>,
    /// Of the first draft of each prompt.
    distributions: Vec<Distribution>,
    is_first: bool,
}

impl Proposer for Recorder {
    fn start(&mut self, capacity: usize, first: u32) {
        self.is_first = true;
        self.inner.start(capacity, first);
    }

    fn observe(&mut self, tokens: &[u32], features: &Features) {
        self.inner.observe(tokens, features);
    }

    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        let draft = self.inner.propose(request, rng);
        if let (true, Proposal::Sampled(distributions)) = (self.is_first, &draft.proposal) {
            self.distributions.extend(distributions.iter().cloned());
        }
        self.is_first = false;
        self.drafts.push(draft.tokens.clone());
        draft
    }

    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>> {
        self.inner.ranks(tokens)
    }

    fn passes(&self, depth: usize) -> usize {
        self.inner.passes(depth)
    }

    fn parameters_per_pass(&self) -> u64 {
        self.inner.parameters_per_pass()
    }
}

/// What a drafter drafts by its own probabilities, and these.
#[derive(Debug, Clone, PartialEq)]
struct Drawn {
    drafts: Vec<Vec<u32>>,
    distributions: Vec<Distribution>,
}

fn drawn(judge: &Judge, prompts: &[Vec<u32>]) -> Result<Drawn> {
    let mut recorder = Recorder {
        inner: judge.drafter.session(),
        drafts: Vec::new(),
        distributions: Vec::new(),
        is_first: true,
    };
    decode(judge, &mut recorder, prompts, Sampling::at(1.0))?;
    Ok(Drawn {
        drafts: recorder.drafts,
        distributions: recorder.distributions,
    })
}

fn same_drafts(expected: &Drawn, found: &Drawn) -> bool {
    let near = |a: &f32, b: &f32| (a - b).abs() <= SAME * a.max(*b) + f32::MIN_POSITIVE;
    let same = |(a, b): (&Distribution, &Distribution)| {
        let mut pairs = a.probabilities.iter().zip(&b.probabilities);
        a.probabilities.len() == b.probabilities.len() && pairs.all(|(a, b)| near(a, b))
    };
    let mut pairs = expected.distributions.iter().zip(&found.distributions);
    expected.drafts == found.drafts
        && expected.distributions.len() == found.distributions.len()
        && pairs.all(same)
}

/// In f32 the two drafters are the same; rounded weights may change a few drafts, but not most of them.
fn compare(trained: &Decoded, exported: &Decoded, dtype: DType) -> Result<()> {
    let same = match dtype {
        DType::F32 => trained == exported,
        _ => exported.total() as f64 >= KEPT_WHEN_ROUNDED * trained.total() as f64,
    };
    match same {
        true => Ok(()),
        false => bail!(
            "the exported drafter drafts worse than the trained one: τ {:.3}, expected {:.3}; try `--set export.dtype=f32`",
            exported.tau(),
            trained.tau()
        ),
    }
}

/// Where the drafter in a folder comes from, as the folder itself says.
pub fn provenance_of(folder: &Path) -> Result<Option<Value>> {
    let model = ModelFolder::open(folder)?;
    Ok(seal::provenance(model.config()).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::prelude::Device;
    use spectrain_checkpoints::eagle1::{self, Eagle1Layout};
    use spectrain_checkpoints::eagle3::{self, Eagle3Layout};
    use spectrain_models::eagle1::{Eagle1, Eagle1Config};
    use spectrain_models::eagle3::{Eagle3, Eagle3Config};
    use spectrain_models::RandomWeights;

    use crate::drafter_folder::samples::vocabulary;
    use crate::registry::Shipped;

    type Changed<L> = (&'static str, fn(&mut L), fn(&mut Vec<NamedTensor>));

    fn same(_: &mut Vec<NamedTensor>) {}

    /// Two tensors of one shape in each other's place.
    fn swap(tensors: &mut [NamedTensor], names: [&str; 2]) {
        for tensor in tensors {
            let name = match tensor.name.as_str() {
                name if name == names[0] => names[1],
                name if name == names[1] => names[0],
                _ => continue,
            };
            tensor.name = name.to_owned();
        }
    }

    /// Writes a drafter of `config` well, in every type, and then with each of the `changes`, sealed as if it were right.
    fn only_what_was_trained_passes<D: Shipped, L: Clone>(
        config: &D::Config,
        draft_vocab: usize,
        read: fn(&Path) -> spectrain_checkpoints::Result<(L, Vec<NamedTensor>)>,
        write: fn(&Path, &L, Vec<NamedTensor>, &Value) -> spectrain_checkpoints::Result<()>,
        changes: &[Changed<L>],
    ) {
        let root = tempfile::tempdir().unwrap();
        let device = Device::flex();
        let target = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/targets/llama");
        let model = ModelFolder::open(target).unwrap();
        let parts = spectrain_models::load_target(&model, &device, DType::F32)
            .unwrap()
            .parts();
        let mut random = RandomWeights::new(3);
        let drafter = D::new(
            config,
            &parts,
            &vocabulary(draft_vocab),
            &mut random,
            &device,
        )
        .unwrap();
        let good = root.path().join("good");
        drafter.write(&good, DType::F32, &Value::Null).unwrap();
        let mut judge = Judge::open(Path::new(target), &good, &device, DType::F32).unwrap();
        let trained = judge.drafter.rounded(DType::F32).unwrap();
        let prompts = judge.generated_prompts(2).unwrap();
        let mut verified = |folder: &Path, dtype: DType| {
            let writing = Writing {
                folder,
                dtype,
                target: "t",
                draft_length: 2,
                provenance: &Value::Null,
            };
            judge.drafter = open_drafter(folder, &parts, &device).unwrap();
            verify(&mut judge, trained.as_ref(), &writing, &prompts)
        };
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let folder = root.path().join(dtype.name());
            drafter.write(&folder, dtype, &Value::Null).unwrap();
            verified(&folder, dtype).unwrap();
        }
        verified(&root.path().join("BF16"), DType::F32).unwrap_err();
        for (name, change, change_tensors) in changes {
            let (mut layout, mut tensors) = read(&good).unwrap();
            change(&mut layout);
            change_tensors(&mut tensors);
            let folder = root.path().join("changed");
            write(&folder, &layout, tensors, &Value::Null).unwrap();
            assert!(
                verified(&folder, DType::F32).is_err(),
                "{name} passes in silence"
            );
        }
    }

    #[test]
    fn an_eagle_3_folder_of_another_drafter_does_not_pass_for_the_trained_one() {
        let config = Eagle3Config {
            captured_layers: vec![0, 2],
            draft_vocab: 20,
            ..Eagle3Config::default()
        };
        let none = |_: &mut Eagle3Layout| ();
        let changes: [Changed<Eagle3Layout>; 10] = [
            ("the layer below", |l| l.captured_layers = vec![0, 1], same),
            ("the layer above", |l| l.captured_layers = vec![1, 2], same),
            (
                "the other residual",
                |l| l.norm_before_residual = true,
                same,
            ),
            ("another epsilon", |l| l.rms_norm_eps = 1e-2, same),
            ("another rope", |l| l.rope.rope_theta *= 2.0, same),
            ("gate and up", none, |t| {
                swap(
                    t,
                    [
                        "midlayer.mlp.gate_proj.weight",
                        "midlayer.mlp.up_proj.weight",
                    ],
                );
            }),
            ("keys and values", none, |t| {
                swap(
                    t,
                    [
                        "midlayer.self_attn.k_proj.weight",
                        "midlayer.self_attn.v_proj.weight",
                    ],
                );
            }),
            ("two norms", none, |t| {
                swap(t, ["norm.weight", "midlayer.hidden_norm.weight"]);
                // They all start at one; what is exchanged must differ.
                let norm = t.iter_mut().find(|t| t.name == "norm.weight").unwrap();
                *norm = NamedTensor::from_f32(
                    "norm.weight",
                    norm.shape.clone(),
                    vec![1.5; norm.shape[0]],
                );
            }),
            ("permuted columns", none, |t| {
                let fc = t.iter_mut().find(|t| t.name == "fc.weight").unwrap();
                fc.bytes.rotate_left(4);
            }),
            ("a shifted vocabulary", none, |t| {
                let d2t = t.iter().find(|t| t.name == "d2t").unwrap();
                let vocab = t.iter().find(|t| t.name == "t2d").unwrap().shape[0];
                let ids = eagle3::target_ids(d2t).unwrap();
                let first = if ids[0] == 0 { ids.len() } else { 0 };
                let ids: Vec<usize> = match first {
                    0 => ids.iter().map(|id| id - 1).collect(),
                    _ => (0..ids.len()).collect(),
                };
                let (d2t, t2d) = eagle3::vocabulary_tensors(&ids, vocab);
                t.retain(|t| !["d2t", "t2d"].contains(&t.name.as_str()));
                t.extend([d2t, t2d]);
            }),
        ];
        only_what_was_trained_passes::<Eagle3, _>(
            &config,
            20,
            eagle3::read,
            eagle3::write,
            &changes,
        );
    }

    #[test]
    fn an_eagle_1_folder_of_another_drafter_does_not_pass_for_the_trained_one() {
        let config = Eagle1Config {
            bias: true,
            ..Eagle1Config::default()
        };
        let none = |_: &mut Eagle1Layout| ();
        let changes: [Changed<Eagle1Layout>; 4] = [
            ("another epsilon", |l| l.rms_norm_eps = 1e-2, same),
            ("another rope", |l| l.rope.rope_theta *= 2.0, same),
            ("gate and up", none, |t| {
                swap(
                    t,
                    [
                        "layers.0.mlp.gate_proj.weight",
                        "layers.0.mlp.up_proj.weight",
                    ],
                );
            }),
            ("feature before embedding", none, |t| {
                let fc = t.iter_mut().find(|t| t.name == "fc.weight").unwrap();
                let half = fc.shape[1] / 2 * 4;
                fc.bytes
                    .chunks_mut(2 * half)
                    .for_each(|row| row.rotate_left(half));
            }),
        ];
        only_what_was_trained_passes::<Eagle1, _>(
            &config,
            0,
            eagle1::read,
            eagle1::write,
            &changes,
        );
    }

    #[test]
    fn a_tensor_that_differs_in_one_bit_is_found() {
        let fc = |value: f32| NamedTensor::from_f32("fc.weight", [2], vec![0.1, value]);
        let head = NamedTensor::from_f32("lm_head.weight", [1], vec![0.5]);
        assert!(check_tensors(&[fc(0.2)], &[fc(0.2)]).unwrap());
        assert!(!check_tensors(&[fc(0.2)], &[fc(0.2), head]).unwrap());
        let refused = |found: &[NamedTensor], part: &str| {
            let error = check_tensors(&[fc(0.2)], found).unwrap_err().to_string();
            assert!(
                error.contains("`fc.weight`") && error.contains(part),
                "{error}"
            );
        };
        refused(&[fc(f32::from_bits(0.2f32.to_bits() + 1))], "not the one");
        refused(&[], "missing");
        let other = NamedTensor::from_f32("norm.weight", [1], vec![0.5]);
        let error = check_tensors(&[fc(0.2)], &[fc(0.2), other]).unwrap_err();
        assert!(error.to_string().contains("`norm.weight` was not trained"));
    }

    #[test]
    fn an_exported_drafter_that_accepts_less_is_refused() {
        let of = |accepted: &[usize]| Decoded {
            accepted: accepted.to_vec(),
        };
        let trained = of(&[3, 2, 5, 0]);
        compare(&trained, &trained, DType::F32).unwrap();
        compare(&trained, &of(&[3, 2, 4, 0]), DType::F32).unwrap_err();
        compare(&trained, &of(&[3, 2, 4, 0]), DType::BF16).unwrap();
        let error = compare(&trained, &of(&[1, 2, 0, 1]), DType::BF16)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("2.000") && error.contains("3.500"),
            "{error}"
        );
    }

    #[test]
    fn drafts_are_the_same_but_for_the_order_of_sums() {
        let of = |probability: f32, token| Drawn {
            drafts: vec![vec![token]],
            distributions: vec![Distribution {
                probabilities: vec![probability, 1.0 - probability],
            }],
        };
        assert!(same_drafts(&of(0.25, 3), &of(0.250_001, 3)));
        assert!(!same_drafts(&of(0.25, 3), &of(0.251, 3)));
        assert!(!same_drafts(&of(0.25, 3), &of(0.25, 4)));
        let fewer = Drawn {
            distributions: Vec::new(),
            ..of(0.25, 3)
        };
        assert!(!same_drafts(&of(0.25, 3), &fewer));
    }

    #[test]
    fn a_path_that_misleads_vllm_is_remarked_upon() {
        let folder = |path: &str| misleading("pard", Path::new(path));
        assert!(
            folder("runs/my-DFlash-run/drafter")
                .unwrap()
                .contains("`dflash`")
        );
        assert_eq!(folder("runs/pard/drafter"), None);
        assert_eq!(misleading("eagle3", Path::new("runs/eagle3/drafter")), None);
        assert!(misleading("eagle3", Path::new("runs/eagle-3/drafter")).is_some());
    }

    #[test]
    fn the_layout_of_most_engines_is_always_written() {
        let names = |to: &[Engine]| -> Vec<String> {
            folders(to).into_iter().map(|(folder, _)| folder).collect()
        };
        assert_eq!(names(&[Engine::Sglang, Engine::Vllm]), ["export/drafter"]);
        let both = ["export/drafter", "export/drafter-speculators"];
        assert_eq!(names(&[Engine::Speculators]), both);
        assert_eq!(names(&[Engine::Vllm, Engine::Speculators]), both);
    }
}
