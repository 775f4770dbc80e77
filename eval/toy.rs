//! A target whose logits are a hash of everything before, kept in a real cache, and drafters that know it.
use burn::module::{Param, ParamId};
use burn::prelude::*;
use burn::tensor::DType;
use rand::{RngExt, rngs::StdRng};
use spectrain_checkpoints::DType as StoredType;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::{
    Caches, Capture, Distribution, Draft, DraftRequest, DraftSource, DraftStep, Features,
    KnownText, Linear, LogitRows, Pass, Proposal, Proposer, RandomWeights, RmsNorm, RopeConfig,
    RopeScaling, Sampling, Scope, SoftCap, TakeGuesses, TakeLogits, Target, TargetOutput,
    TargetParts, TargetSpec, Tree, USUAL_DRAFT, argmax, build, embedding, sample,
};

pub(crate) const VOCAB: usize = 5;

/// Width of the target's last hidden states: see [`state`].
const WIDTH: usize = PARTS * VOCAB;
const PARTS: usize = 3;

/// What the target and the drafters say of their sizes.
pub(crate) const TARGET_PARAMETERS: u64 = 100;
/// Parameters that it holds: it has experts that a token does not go through.
pub(crate) const TARGET_HELD: u64 = 300;
pub(crate) const DRAFTER_PARAMETERS: u64 = 20;

/// Its logits depend on every token before, so that a wrong cache row, parent or position shows.
pub(crate) struct ToyTarget {
    /// Their head adds the parts of a [`state`].
    parts: TargetParts,
    device: Device,
    /// Behind which texts its logits are no numbers.
    broken: fn(&[u32]) -> bool,
}

impl Default for ToyTarget {
    fn default() -> Self {
        Self::with_positions(10_000)
    }
}

impl ToyTarget {
    pub(crate) fn with_positions(max_positions: usize) -> Self {
        let spec = TargetSpec {
            layers: 1,
            d_model: WIDTH,
            d_ff: 1,
            heads: 1,
            kv_heads: 1,
            d_head: 1,
            vocab: VOCAB,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            max_positions,
            routing: None,
        };
        let device = test_device();
        Self {
            parts: parts(spec, &device),
            device,
            broken: |_| false,
        }
    }

    /// One whose logits are no numbers.
    pub(crate) fn broken() -> Self {
        Self::broken_behind(|_| true)
    }

    /// One whose logits are no numbers behind some texts.
    pub(crate) fn broken_behind(broken: fn(&[u32]) -> bool) -> Self {
        Self {
            broken,
            ..Self::default()
        }
    }
}

/// The logits after `context`, between -1.5 and 1.5.
pub(crate) fn logits(context: &[u32], salt: u64) -> Vec<f32> {
    let mut state = salt;
    let mut mix = |value: u64| {
        state = (state ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state ^= state >> 29;
        state
    };
    context.iter().for_each(|&token| _ = mix(1 + token as u64));
    (0..VOCAB as u64)
        .map(|token| (mix(100 + token) >> 40) as f32 / (1 << 24) as f32 * 3.0 - 1.5)
        .collect()
}

/// The last hidden state with these logits, which are the sums of its parts: products on a GPU are in TF32, which keeps ten bits
/// of a factor.
fn state(logits: &[f32]) -> [f32; WIDTH] {
    let ten_bits = |value: f32| f32::from_bits(value.to_bits() & !0x1fff);
    let mut state = [0.0; WIDTH];
    for (token, &logit) in logits.iter().enumerate() {
        let mut rest = logit;
        for part in 0..PARTS {
            state[part * VOCAB + token] = ten_bits(rest);
            rest -= ten_bits(rest);
        }
    }
    state
}

fn parts(spec: TargetSpec, device: &Device) -> TargetParts {
    let mut weights = RandomWeights::new(0);
    let mut scope = Scope::root(&mut weights, device, StoredType::F32);
    let sum = Tensor::cat(vec![Tensor::<2>::eye(VOCAB, device); PARTS], 0);
    TargetParts {
        spec,
        embed_tokens: embedding(&mut scope.child("embed_tokens"), VOCAB, WIDTH).unwrap(),
        norm: RmsNorm::new(&mut scope.child("norm"), WIDTH, 1e-6).unwrap(),
        lm_head: Linear {
            weight: Param::initialized(ParamId::new(), sum),
            bias: None,
            lora: None,
        },
        soft_cap: SoftCap::default(),
        folder: None,
    }
}

/// Salt of the target's own logits.
pub(crate) const TARGET: u64 = 17;

impl Target for ToyTarget {
    fn spec(&self) -> &TargetSpec {
        &self.parts.spec
    }

    fn device(&self) -> Device {
        self.device.clone()
    }

    fn parameters(&self) -> u64 {
        TARGET_HELD
    }

    fn parameters_per_pass(&self) -> u64 {
        TARGET_PARAMETERS
    }

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn parts(&self) -> TargetParts {
        self.parts.clone()
    }

    /// Captured is `[token, position]`.
    fn decode(&self, pass: Pass, caches: &mut Caches, _: &Capture) -> TargetOutput {
        let count = pass.tokens.len();
        assert_eq!(pass.parents.len(), count);
        let new: Vec<f32> = pass.tokens.iter().map(|&token| token as f32).collect();
        let rows = Tensor::<1>::from_floats(new.as_slice(), &self.device).reshape([1, 1, count, 1]);
        let cache = &mut caches.layers[0];
        cache.append(rows.clone(), rows);
        let (keys, _) = cache.first(cache.len());
        let held: Vec<u32> = keys
            .into_data()
            .iter::<f32>()
            .map(|token| token as u32)
            .collect();
        let cached = caches.len;
        assert_eq!(held.len(), cached + count);
        caches.len += count;
        let [mut all, mut last, mut captured]: [Vec<f32>; 3] = Default::default();
        for node in 0..count {
            let mut path = Vec::new();
            let mut at = Some(node);
            while let Some(ancestor) = at {
                path.push(pass.tokens[ancestor]);
                at = pass.parents[ancestor];
            }
            path.extend(held[..cached].iter().rev());
            path.reverse();
            assert!(
                path.len() <= self.parts.spec.max_positions,
                "past the context"
            );
            captured.extend([pass.tokens[node] as f32, (path.len() - 1) as f32]);
            let mut row = logits(&path, TARGET);
            if (self.broken)(&path) {
                // Of a row a single entry is none: the likeliest token seems to be another.
                row[VOCAB - 1] = f32::NAN;
            }
            if pass.logits == LogitRows::All || node + 1 == count {
                all.extend(&row);
            }
            last.extend(state(&row));
        }
        let rows = all.len() / VOCAB;
        let tensor = |values: &[f32]| Tensor::<1>::from_floats(values, &self.device);
        TargetOutput {
            logits: tensor(&all).reshape([rows, VOCAB]),
            features: Features {
                captured: tensor(&captured).reshape([1, count, 2]),
                last: tensor(&last).reshape([1, count, WIDTH]),
            },
        }
    }
}

/// How a [`ToyDrafter`] drafts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Style {
    /// What is asked for, of logits of its own.
    Own,
    /// What is asked for, of the target's logits.
    Oracle,
    /// As `Oracle`, all in one pass.
    AtOnce,
    /// What is asked for, of the target's logits turned round, with certainty.
    Adversarial,
    /// A deterministic tree with the target's most likely tokens among the later siblings, on and off.
    Tree,
    /// A chain drawn from one distribution that states another.
    Misstated,
    /// One step more than asked for.
    TooLong,
}

/// Salt of the drafter's own logits.
pub(crate) const OWN: u64 = 99;

/// Logits by the text: what is committed and the path in the draft.
pub(crate) struct TextSource<'a, F: FnMut(&[f32]) -> u32> {
    /// What is committed.
    pub(crate) text: &'a [u32],
    /// Whose logits.
    pub(crate) salt: u64,
    /// Divides the logits; negative to turn them round.
    pub(crate) scale: f32,
    /// The first tokens of the toy, all that there are.
    pub(crate) vocab: usize,
    /// What draws.
    pub(crate) draw: F,
}

impl<F: FnMut(&[f32]) -> u32> DraftSource for TextSource<'_, F> {
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let after = |node: Option<usize>| -> Vec<f32> {
            let mut path = self.text.to_vec();
            path.extend(node.map(|node| tree.path(node)).unwrap_or_default());
            let logits = logits(&path, self.salt).into_iter().take(self.vocab);
            logits.map(|logit| logit * self.scale).collect()
        };
        let rows: Vec<Vec<f32>> = match nodes {
            [] => vec![after(None)],
            nodes => nodes.iter().map(|&node| after(Some(node))).collect(),
        };
        let shape = [rows.len(), self.vocab];
        Tensor::from_data(TensorData::new(rows.concat(), shape), &Device::flex())
    }

    fn confidence(&mut self, tree: &Tree, nodes: &[usize]) -> Option<Vec<f32>> {
        Some(vec![guess(nodes.first().map(|&node| tree.tokens[node]))])
    }

    fn draw(&mut self, weights: &[f32]) -> u32 {
        (self.draw)(weights)
    }
}

/// What a head would guess of a step: by the token drafted before it, and by nothing else.
pub(crate) fn guess(before: Option<u32>) -> f32 {
    match before {
        None => 0.9,
        Some(token) => [0.2, 0.9, 0.6, 0.4][token as usize % 4],
    }
}

/// A drafter that reads the text from what it observes, and checks what it observes.
pub(crate) struct ToyDrafter {
    style: Style,
    vocabulary: DraftVocabulary,
    /// The committed text, as far as features and tokens tell it.
    pub(crate) text: Vec<u32>,
    /// Tokens and positions of the features of each `observe`.
    pub(crate) observed: Vec<Vec<[u32; 2]>>,
    pub(crate) requests: Vec<usize>,
}

impl ToyDrafter {
    pub(crate) fn new(style: Style) -> Self {
        Self {
            style,
            vocabulary: DraftVocabulary::full(VOCAB),
            text: Vec::new(),
            observed: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// What is asked for.
    fn asked(&self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        let mut request = request.clone();
        if self.style == Style::Adversarial {
            request.sampling = Sampling::GREEDY;
        }
        let mut source = TextSource {
            text: &self.text,
            salt: match self.style {
                Style::Own => OWN,
                _ => TARGET,
            },
            scale: match self.style {
                Style::Adversarial => -1.0,
                _ => 1.0,
            },
            vocab: VOCAB,
            draw: |weights: &[f32]| sample(weights, rng),
        };
        build(&request, &DraftVocabulary::full(VOCAB), &mut source)
    }

    fn misstated(&self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        let mut context = self.text.clone();
        for _ in 0..request.length {
            let distribution = Sampling::at(0.5).distribution(&logits(&context, OWN));
            context.push(distribution.sample(rng));
        }
        let uniform = Distribution {
            probabilities: vec![1.0 / VOCAB as f32; VOCAB],
        };
        let distributions = vec![uniform; request.length];
        Draft::chain(
            context.split_off(self.text.len()),
            Proposal::Sampled(distributions),
        )
    }

    /// Two children of every node of the first path, the most likely token second, or missing at random.
    fn tree(&self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        let mut draft = Draft::default();
        let mut context = self.text.clone();
        let mut parent = None;
        for _ in 0..request.length {
            let best = argmax(&logits(&context, TARGET)) as u32;
            let other = (best + rng.random_range(1..VOCAB as u32)) % VOCAB as u32;
            let second = if rng.random_bool(0.2) {
                (other + 1) % VOCAB as u32
            } else {
                best
            };
            draft.tokens.extend([other, second]);
            draft.parents.extend([parent, parent]);
            parent = Some(draft.len() - 1);
            context.push(second);
        }
        draft
    }
}

impl Proposer for ToyDrafter {
    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        let salt = match self.style {
            Style::Own => OWN,
            _ => TARGET,
        };
        for place in text.first..text.tokens.len() - 1 {
            for step in 0..text.known(place) {
                let row = logits(&text.tokens[..=place + step], salt);
                let row = Tensor::<1>::from_floats(row.as_slice(), &test_device());
                if take(&[DraftStep { place, step }], row.unsqueeze()).is_break() {
                    return;
                }
            }
        }
    }

    fn follows_text(&self) -> bool {
        true
    }

    fn guesses_along(&self, text: &KnownText, take: &mut TakeGuesses) {
        for place in text.first..text.tokens.len() - 1 {
            for step in 0..text.known(place) {
                let before = (step > 0).then(|| text.tokens[place + step]);
                take(&[DraftStep { place, step }], vec![guess(before)]);
            }
        }
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        &self.vocabulary
    }

    fn forced(&mut self, _: &[u32]) -> Vec<Vec<f32>> {
        unreachable!("a toy has no logits")
    }

    fn max_depth(&self) -> Option<usize> {
        None
    }

    fn draft_length(&self) -> usize {
        USUAL_DRAFT
    }

    fn has_confidence(&self) -> bool {
        true
    }

    fn start(&mut self, _: usize, _: u32) {
        *self = Self::new(self.style);
    }

    /// Every feature belongs to the token before its own, at the position that follows the last one seen.
    fn observe(&mut self, tokens: &[u32], features: &Features) {
        let [batch, seq, _] = features.captured.dims();
        assert_eq!((batch, seq), (1, tokens.len()));
        let flat: Vec<u32> = features
            .captured
            .clone()
            .into_data()
            .iter::<f32>()
            .map(|value| value as u32)
            .collect();
        let rows: Vec<[u32; 2]> = flat.chunks(2).map(|row| [row[0], row[1]]).collect();
        if self.text.is_empty() {
            self.text.push(rows[0][0]);
        }
        for (&token, [of, position]) in tokens.iter().zip(&rows) {
            assert_eq!(self.text.last(), Some(of), "feature of another token");
            assert_eq!(
                self.text.len() - 1,
                *position as usize,
                "feature of another position"
            );
            self.text.push(token);
        }
        self.observed.push(rows);
    }

    fn judged(&mut self, tokens: &[u32], logits: &Tensor<2>) {
        assert_eq!(logits.dims(), [tokens.len(), VOCAB]);
        assert_eq!(
            self.text.last(),
            tokens.first(),
            "judged behind another token"
        );
    }

    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        self.requests.push(request.length);
        match self.style {
            Style::Tree => self.tree(request, rng),
            Style::Misstated => self.misstated(request, rng),
            Style::TooLong => Draft::chain(vec![0; request.length + 1], Proposal::Deterministic),
            Style::Own | Style::Oracle | Style::AtOnce | Style::Adversarial => {
                self.asked(request, rng)
            }
        }
    }

    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>> {
        let mut context = self.text.clone();
        let salt = match self.style {
            Style::Oracle => TARGET,
            _ => OWN,
        };
        let rank = |&token: &u32| {
            let row = logits(&context, salt);
            context.push(token);
            Some(
                row.iter()
                    .filter(|&&logit| logit > row[token as usize])
                    .count(),
            )
        };
        tokens.iter().map(rank).collect()
    }

    fn passes(&self, depth: usize) -> usize {
        match self.style {
            Style::AtOnce => depth.min(1),
            _ => depth,
        }
    }

    fn parameters_per_pass(&self) -> u64 {
        DRAFTER_PARAMETERS
    }
}
