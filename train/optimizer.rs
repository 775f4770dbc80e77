//! AdamW and Muon over the named parameters of a module, with clipping of the global gradient norm.
use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::prelude::*;
use burn::tensor::{DType, Gradients as Graph};
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::NamedTensor;
use spectrain_models::units::Units;
use spectrain_models::weights::{host_f32, lift, tensor_from};

use crate::arithmetic::arithmetic;
use crate::arithmetic::operations::{AdamWStep, Gradient, Moments, NamedGradients};
use crate::error::{Error, Result};
use crate::muon::{self, MuonStep};
use crate::parameters::flat;

/// Settings of an [`Optimizer`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerConfig {
    /// What moves matrices, other than tables.
    pub matrices: Mover,
    /// Their learning rate, and that of tables, as multiples of that of norms and biases.
    pub matrix_rate: f64,
    /// See `matrix_rate`.
    pub table_rate: f64,
    /// AdamW's decay of the first moment.
    pub beta1: f64,
    /// AdamW's decay of the second moment.
    pub beta2: f64,
    /// Added to the root of AdamW's second moment.
    pub epsilon: f64,
    /// Share of the learning rate by which matrices and tables shrink at each step. Norms and biases do not: nothing pulls a
    /// gain towards zero.
    pub weight_decay: f64,
    /// Size to which every element of the gradient is cut; 0 cuts nothing.
    pub clip_value: f64,
    /// Decay of the mean of the weights that is kept beside them; 0 keeps none.
    pub average: f64,
}

/// What moves a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mover {
    /// AdamW (Loshchilov and Hutter, <https://arxiv.org/abs/1711.05101>).
    AdamW,
    /// Muon (Jordan et al., <https://kellerjordan.github.io/posts/muon/>), with this decay of the momentum.
    Muon(f64),
}

impl Mover {
    /// Values of the gradients' past that are kept of each parameter: AdamW's two moments, or Muon's momentum.
    fn kept(self) -> u64 {
        match self {
            Self::AdamW => 2,
            Self::Muon(_) => 1,
        }
    }
}

impl OptimizerConfig {
    /// What moves the parameters of a kind.
    fn mover(&self, kind: Kind) -> Mover {
        match kind {
            Kind::Matrix => self.matrices,
            Kind::Table | Kind::Other => Mover::AdamW,
        }
    }

    /// Values, of 4 bytes, that are kept of each parameter of a kind beside it.
    pub fn kept(&self, kind: Kind) -> u64 {
        self.mover(kind).kept() + u64::from(self.average > 0.0)
    }
}

/// What a parameter is to an optimiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A matrix from states to states.
    Matrix,
    /// A matrix with a row or a column for each token.
    Table,
    /// Gains, biases, kernels, and whatever else is no matrix.
    Other,
}

/// The modules that have a row or a column for each token.
const TABLES: [&str; 7] = [
    "embed_tokens",
    "lm_head",
    "lm_heads",
    "markov_w1",
    "markov_w2",
    "predecessor_codebook",
    "successor_codebook",
];

impl Kind {
    /// Of the parameter at `path`, of this shape.
    pub fn of(path: &str, shape: &[usize]) -> Self {
        if path.split('.').any(|module| TABLES.contains(&module)) {
            return Self::Table;
        }
        match shape {
            // One row or column is a vector.
            [rows, columns] if *rows > 1 && *columns > 1 => Self::Matrix,
            _ => Self::Other,
        }
    }
}

/// Gradients by parameter name, flat, f32.
#[derive(Debug, Default)]
pub struct Gradients {
    named: NamedGradients,
    /// What all of them have yet to be multiplied by, `[1]`: an update reads them anyway.
    factor: Option<Tensor<1>>,
}

impl From<NamedGradients> for Gradients {
    fn from(named: NamedGradients) -> Self {
        Self {
            named,
            factor: None,
        }
    }
}

/// Moves the parameters of a module, and keeps what it needs for that.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    kept: BTreeMap<String, Kept>,
    /// Of matrices whose inputs are of different sizes, what these are measured in: `[d_in, 1]`.
    units: BTreeMap<String, Tensor<2>>,
    updates: u64,
}

/// What is kept of a parameter's gradients, flat, f32.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "handles of tensors, a few of each parameter"
)]
enum Kept {
    AdamW(Moments),
    Muon(Tensor<1>),
}

impl Gradients {
    /// Adds those of a backward pass, and those of parameters that are not in the graph.
    pub fn add<M: Module>(
        &mut self,
        module: &M,
        graph: Option<Graph>,
        known: Vec<(ParamId, Tensor<2>)>,
    ) {
        module.visit(&mut Collect {
            path: Vec::new(),
            graph,
            known,
            sums: self.multiplied(),
        });
    }

    /// Makes these the mean with `others`, which count `share` of it. What one side lacks is zero there.
    pub fn average_in(&mut self, mut others: Self, share: f64) {
        if share == 1.0 {
            *self = others;
            return;
        }
        let sums = self.multiplied();
        for sum in sums.values_mut() {
            sum.inplace(|sum| sum * (1.0 - share));
        }
        for (name, other) in std::mem::take(others.multiplied()) {
            let other = other * share;
            let sum = match sums.remove(&name) {
                Some(before) => before + other,
                None => other,
            };
            sums.insert(name, sum);
        }
    }

    /// The Euclidean norm over all parameters, `[1]`; `None` when there is no gradient.
    pub fn norm(&mut self) -> Option<Tensor<1>> {
        norm_of(self.square_sums())
    }

    /// The sum of the squares of each, `[1]`.
    pub(crate) fn square_sums(&mut self) -> NamedGradients {
        let mut sums = NamedGradients::new();
        for (name, gradient) in self.multiplied() {
            let own = arithmetic(&gradient.device());
            sums.insert(name.clone(), own.square_sum(gradient));
        }
        sums
    }

    /// Takes out those of the parameters whose name `is_wanted`.
    pub(crate) fn part(&mut self, is_wanted: impl Fn(&str) -> bool) -> NamedGradients {
        self.multiplied()
            .extract_if(.., |name, _| is_wanted(name))
            .collect()
    }

    /// Scales all of them down so that their norm is at most `largest`
    /// (Pascanu et al., <https://arxiv.org/abs/1211.5063>).
    pub fn clip(&mut self, norm: Tensor<1>, largest: f64) {
        self.multiplied();
        self.factor = arithmetic(&norm.device()).clip_factor(norm, largest);
    }

    /// Cuts every element to `±largest`.
    pub fn clip_values(&mut self, largest: f64) {
        for gradient in self.multiplied().values_mut() {
            gradient.inplace(|g| g.clamp(-largest, largest));
        }
    }

    /// Name and elements of every gradient.
    pub fn to_host(&self) -> BTreeMap<String, Vec<f32>> {
        let read = |(name, values): (&String, &Tensor<1>)| {
            let (values, factor) = (values.clone(), self.factor.clone());
            (name.clone(), host_f32(Gradient { values, factor }.whole()))
        };
        self.named.iter().map(read).collect()
    }

    /// The gradients, with nothing left to multiply them by.
    fn multiplied(&mut self) -> &mut NamedGradients {
        if let Some(factor) = self.factor.take() {
            for gradient in self.named.values_mut() {
                gradient.inplace(|gradient| gradient * factor.clone());
            }
        }
        &mut self.named
    }
}

/// The Euclidean norm, `[1]`, over parameters whose [`square_sums`](Gradients::square_sums) these are.
pub(crate) fn norm_of(square_sums: NamedGradients) -> Option<Tensor<1>> {
    let sum = square_sums.into_values().reduce(Tensor::add);
    sum.map(Tensor::sqrt)
}

struct Collect<'a> {
    path: Vec<String>,
    graph: Option<Graph>,
    known: Vec<(ParamId, Tensor<2>)>,
    sums: &'a mut BTreeMap<String, Tensor<1>>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let graph = self.graph.as_mut();
        let passed_back = graph.and_then(|graph| param.val().grad_remove(graph));
        let known = self.known.extract_if(.., |(id, _)| *id == param.id);
        let parts = passed_back.map(flat).into_iter();
        let parts = parts.chain(known.map(|(_, gradient)| flat(gradient)));
        let parts = parts.map(|part| part.cast(DType::F32));
        let name = self.path.join(".");
        let before = self.sums.remove(&name);
        let sum = before.into_iter().chain(parts).reduce(Tensor::add);
        self.sums.extend(sum.map(|sum| (name, sum)));
    }
}

impl Optimizer {
    /// An optimiser that has seen nothing.
    pub fn new(config: OptimizerConfig) -> Self {
        Self {
            config,
            kept: BTreeMap::new(),
            units: BTreeMap::new(),
            updates: 0,
        }
    }

    /// The same for a model some of whose matrices have [`units`](spectrain_models::units).
    pub(crate) fn with_units(mut self, units: Vec<Units>, device: &Device) -> Self {
        let tensor = |(name, units): Units| {
            let shape = [units.len(), 1];
            let units = Tensor::from_data(TensorData::new(units, shape), device);
            (name, units)
        };
        self.units = units.into_iter().map(tensor).collect();
        self
    }

    /// Updates so far.
    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    /// Moves every parameter that has a gradient. At least one has, here or on another rank: a step in which no position counted
    /// moves nothing, and must not weaken the correction of later ones.
    pub fn update<M: Module>(
        &mut self,
        module: M,
        mut gradients: Gradients,
        learning_rate: f64,
    ) -> M {
        if self.config.clip_value > 0.0 {
            gradients.clip_values(self.config.clip_value);
        }
        self.updates += 1;
        module.map(&mut Step {
            path: Vec::new(),
            gradients,
            learning_rate,
            optimizer: self,
        })
    }

    /// The weights of a parameter behind a step, which goes as if all of a matrix's inputs were of size 1: what moves is the weights
    /// times their units, which have the gradient over them.
    fn moved<const D: usize>(
        &mut self,
        name: &str,
        weights: Tensor<D>,
        mut gradient: Gradient,
        learning_rate: f64,
    ) -> Tensor<D> {
        let Some(units) = self.units.get(name).cloned() else {
            return self.stepped(name, weights, gradient, learning_rate);
        };
        let shape = weights.dims();
        let matrix = [shape[0], shape[1]];
        let weights = weights.reshape(matrix) * units.clone();
        gradient.values = flat(gradient.values.reshape(matrix) / units.clone());
        let moved = self.stepped(name, weights, gradient, learning_rate);
        (moved / units).reshape(shape)
    }

    fn stepped<const D: usize>(
        &mut self,
        name: &str,
        weights: Tensor<D>,
        gradient: Gradient,
        learning_rate: f64,
    ) -> Tensor<D> {
        let shape = weights.dims();
        let config = self.config;
        let kind = Kind::of(name, &shape);
        let rate = match kind {
            Kind::Matrix => learning_rate * config.matrix_rate,
            Kind::Table => learning_rate * config.table_rate,
            Kind::Other => learning_rate,
        };
        let decay = match D {
            1 => 0.0,
            _ => config.weight_decay,
        };
        let pace = Pace {
            rate,
            shrink: 1.0 - rate * decay,
        };
        let kept = self.kept.remove(name);
        let (moved, kept) = match config.mover(kind) {
            Mover::Muon(beta) => {
                let matrix = [shape[0], shape[1]];
                muon(weights.reshape(matrix), kept, gradient.whole(), beta, pace)
            }
            Mover::AdamW => {
                let flat = weights.reshape([gradient.values.shape().num_elements()]);
                self.adamw(flat, kept, gradient, pace)
            }
        };
        self.kept.insert(name.to_owned(), kept);
        moved.reshape(shape)
    }

    fn adamw(
        &self,
        weights: Tensor<1>,
        kept: Option<Kept>,
        gradient: Gradient,
        pace: Pace,
    ) -> (Tensor<1>, Kept) {
        let moments = match kept {
            Some(Kept::AdamW(moments)) => moments,
            _ => Moments {
                first: gradient.values.zeros_like(),
                second: gradient.values.zeros_like(),
            },
        };
        let OptimizerConfig { beta1, beta2, .. } = self.config;
        let step = AdamWStep {
            beta1,
            beta2,
            epsilon: self.config.epsilon,
            correct1: 1.0 - beta1.powi(self.updates as i32),
            correct2: 1.0 - beta2.powi(self.updates as i32),
            rate: pace.rate,
            shrink: pace.shrink,
        };
        let own = arithmetic(&gradient.values.device());
        let (moved, moments) = own.adamw(weights, moments, gradient, &step);
        (moved, Kept::AdamW(moments))
    }

    /// The state for a checkpoint: what is kept of every parameter, under its name.
    pub fn state(&self) -> (u64, Vec<NamedTensor>) {
        let tensor = |name: &str, part: &str, values: &Tensor<1>| {
            let values = host_f32(values.clone());
            NamedTensor::from_f32(format!("{name}.{part}"), [values.len()], values)
        };
        let tensors = self.kept.iter().flat_map(|(name, kept)| match kept {
            Kept::AdamW(moments) => vec![
                tensor(name, FIRST, &moments.first),
                tensor(name, SECOND, &moments.second),
            ],
            Kept::Muon(momentum) => vec![tensor(name, MOMENTUM, momentum)],
        });
        (self.updates, tensors.collect())
    }

    /// Takes up the state of a checkpoint.
    ///
    /// # Errors
    /// A moment lacks its twin.
    pub fn restore(
        &mut self,
        updates: u64,
        tensors: Vec<NamedTensor>,
        device: &Device,
    ) -> Result<()> {
        self.updates = updates;
        self.kept.clear();
        let mut seconds = BTreeMap::new();
        let mut firsts = BTreeMap::new();
        for tensor in tensors {
            let Some((name, part)) = tensor.name.rsplit_once('.') else {
                return Err(foreign("the state of a parameter", &tensor.name));
            };
            let (name, part) = (name.to_owned(), part.to_owned());
            let values = tensor_from(tensor, device);
            match part.as_str() {
                FIRST => drop(firsts.insert(name, values)),
                SECOND => drop(seconds.insert(name, values)),
                MOMENTUM => drop(self.kept.insert(name, Kept::Muon(values))),
                _ => {
                    return Err(foreign(
                        "the state of a parameter",
                        &format!("{name}.{part}"),
                    ));
                }
            }
        }
        for (name, first) in firsts {
            let Some(second) = seconds.remove(&name) else {
                return Err(foreign(&format!("tensor `{name}.{SECOND}`"), "none"));
            };
            let moments = Moments { first, second };
            self.kept.insert(name, Kept::AdamW(moments));
        }
        match seconds.pop_first() {
            Some((name, _)) => Err(foreign(&format!("tensor `{name}.{FIRST}`"), "none")),
            None => Ok(()),
        }
    }
}

/// What a checkpoint calls the parts of [`Kept`].
const FIRST: &str = "first";
const SECOND: &str = "second";
const MOMENTUM: &str = "momentum";

/// The parameter that a tensor of an optimiser's state belongs to.
pub(crate) fn parameter_of(state: &str) -> &str {
    state.rsplit_once('.').map_or(state, |(name, _)| name)
}

fn foreign(expected: &str, found: &str) -> Error {
    Error::State {
        path: "optimizer".into(),
        mismatch: Mismatch::new(expected, found),
    }
}

fn muon(
    weights: Tensor<2>,
    kept: Option<Kept>,
    gradient: Tensor<1>,
    beta: f64,
    Pace { rate, shrink }: Pace,
) -> (Tensor<1>, Kept) {
    let shape = weights.dims();
    let gradient = gradient.reshape(shape);
    let momentum = match kept {
        Some(Kept::Muon(momentum)) => momentum.reshape(shape),
        _ => gradient.zeros_like(),
    };
    let step = MuonStep { beta, rate, shrink };
    let (weights, momentum) = muon::step(weights, momentum, gradient, step);
    (flat(weights), Kept::Muon(flat(momentum)))
}

/// How far a step goes.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// The learning rate.
    rate: f64,
    /// What is left of the weights before it.
    shrink: f64,
}

struct Step<'a> {
    path: Vec<String>,
    gradients: Gradients,
    learning_rate: f64,
    optimizer: &'a mut Optimizer,
}

impl ModuleMapper for Step<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        let Some(values) = self.gradients.named.remove(&name) else {
            return param;
        };
        let factor = self.gradients.factor.clone();
        let (id, tensor, mapper) = param.consume();
        let device = tensor.device();
        let weights = tensor.without_autodiff();
        let gradient = Gradient { values, factor };
        let moved = (self.optimizer).moved(&name, weights, gradient, self.learning_rate);
        let moved = lift(moved, &device).require_grad();
        Param::from_mapped_value(id, moved, mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_models::device::test_device;

    const CONFIG: OptimizerConfig = OptimizerConfig {
        matrices: Mover::AdamW,
        matrix_rate: 1.0,
        table_rate: 1.0,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        clip_value: 0.0,
        average: 0.0,
    };

    fn whole(values: Tensor<1>) -> Gradient {
        Gradient {
            values,
            factor: None,
        }
    }

    #[test]
    fn two_steps_equal_the_formula_by_hand() {
        let device = test_device();
        let mut optimizer = Optimizer::new(CONFIG);
        // A matrix of one row, so that it decays and Muon has no say in it.
        let mut weight = Tensor::<2>::from_floats([[1.0]], &device);
        let mut expected = 1.0f64;
        let (mut m, mut v) = (0.0f64, 0.0f64);
        for (step, gradient) in [0.5f64, -0.2].into_iter().enumerate() {
            optimizer.updates += 1;
            let g = whole(Tensor::from_floats([gradient as f32], &device));
            weight = optimizer.moved("w", weight, g, 0.01);
            m = 0.9 * m + 0.1 * gradient;
            v = 0.95 * v + 0.05 * gradient * gradient;
            let t = step as i32 + 1;
            let (m_hat, v_hat) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.95f64.powi(t)));
            expected = expected * (1.0 - 0.01 * 0.1) - 0.01 * m_hat / (v_hat.sqrt() + 1e-8);
        }
        let got = host_f32(weight)[0] as f64;
        assert!((got - expected).abs() < 1e-6, "{got} {expected}");
    }

    #[test]
    fn as_much_is_kept_of_each_kind_as_the_settings_say() {
        let muon = OptimizerConfig {
            matrices: Mover::Muon(0.9),
            ..CONFIG
        };
        let shapes = [
            ("fc.weight", [3, 4]),
            ("lm_head.weight", [3, 5]),
            ("norm.weight", [1, 6]),
        ];
        for config in [CONFIG, muon] {
            for (name, shape) in shapes {
                let mut optimizer = Optimizer::new(config);
                let zeros = || Tensor::<2>::zeros(shape, &test_device());
                optimizer.moved(name, zeros(), whole(flat(zeros())), 0.1);
                let (_, kept) = optimizer.state();
                let values: usize = kept
                    .iter()
                    .map(|of| of.shape.iter().product::<usize>())
                    .sum();
                let each = config.kept(Kind::of(name, &shape));
                assert_eq!(values as u64, each * (shape[0] * shape[1]) as u64, "{name}");
            }
        }
    }

    #[test]
    fn clipping_scales_the_global_norm_and_leaves_small_ones() {
        let device = test_device();
        let make = || {
            Gradients::from(BTreeMap::from([
                ("a".to_owned(), Tensor::from_floats([3.0], &device)),
                ("b".to_owned(), Tensor::from_floats([0.0, 4.0], &device)),
            ]))
        };
        let mut gradients = make();
        let norm = gradients.norm().unwrap();
        assert_eq!(host_f32(norm.clone()), [5.0]);
        gradients.clip(norm.clone(), 0.5);
        let clipped = host_f32(gradients.norm().unwrap())[0];
        assert!((clipped - 0.5).abs() < 1e-5, "{clipped}");
        let mut gradients = make();
        gradients.clip(norm, 50.0);
        assert_eq!(host_f32(gradients.norm().unwrap()), [5.0]);
    }

    #[test]
    fn clipping_values_cuts_the_large_ones_and_leaves_the_others() {
        let device = test_device();
        let mut gradients = Gradients::from(BTreeMap::from([
            ("a".to_owned(), Tensor::from_floats([3.0, -0.25], &device)),
            ("b".to_owned(), Tensor::from_floats([-0.75], &device)),
        ]));
        gradients.clip_values(0.5);
        let clipped = gradients.to_host();
        assert_eq!(clipped["a"], [0.5, -0.25]);
        assert_eq!(clipped["b"], [-0.5]);
    }

    #[test]
    fn matrices_decay_and_norms_and_biases_do_not() {
        let device = test_device().autodiff();
        let linear = burn::nn::LinearConfig::new(2, 2).init(&device);
        let [weight, bias] = [
            linear.weight.val().sum(),
            linear.bias.clone().unwrap().val().sum(),
        ];
        let zeros = |(name, count): (&str, usize)| {
            (name.to_owned(), Tensor::zeros([count], &test_device()))
        };
        let gradients = NamedGradients::from([("weight", 4), ("bias", 2)].map(zeros)).into();
        let config = OptimizerConfig {
            weight_decay: 0.5,
            ..CONFIG
        };
        let moved = Optimizer::new(config).update(linear, gradients, 0.1);
        let value = |x: Tensor<1>| host_f32(x)[0];
        let [moved_weight, moved_bias] =
            [moved.weight.val().sum(), moved.bias.unwrap().val().sum()];
        assert!((value(moved_weight) - 0.95 * value(weight)).abs() < 1e-6);
        assert_eq!(value(moved_bias), value(bias));
    }

    #[test]
    fn restored_state_moves_as_the_original() {
        let device = test_device();
        let gradient = || Tensor::<1>::from_floats([0.3, -0.7], &device);
        let weight = || Tensor::<1>::from_floats([0.1, 0.2], &device);
        let mut original = Optimizer::new(CONFIG);
        original.updates = 1;
        original.moved("w", weight(), whole(gradient()), 0.1);
        let (updates, tensors) = original.state();
        let mut restored = Optimizer::new(CONFIG);
        restored.restore(updates, tensors, &device).unwrap();
        let a = host_f32(original.moved("w", weight(), whole(gradient()), 0.1));
        let b = host_f32(restored.moved("w", weight(), whole(gradient()), 0.1));
        assert_eq!(a, b);
    }
}
