//! Where parameters come from, and how a module's parameters are written back.
use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::prelude::*;
use burn::tensor::{DType as BurnDType, Element};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor};

use crate::error::{Error, Result};
use crate::few_rows::int8;
use crate::products::Precision;

/// How a parameter starts when it is not loaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Every element is this.
    Constant(f32),
    /// Uniform in `±sqrt(1 / fan_in)`, PyTorch's default for a linear layer.
    Linear {
        /// Width of the input.
        fan_in: usize,
    },
    /// Normal with this standard deviation.
    Normal(f32),
    /// A convolution that changes nothing: of each `taps` rows of `width` elements the first is 1, the others 0.
    FirstTap {
        /// Rows of a convolution.
        taps: usize,
        /// Elements of a row.
        width: usize,
    },
}

/// A source of parameters by name: random, or a checkpoint.
pub trait Weights {
    /// The parameter `name`, in the layout of a Hugging Face file.
    fn tensor(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor>;
}

/// Fresh parameters. Drawn on the host, so that a seed means the same on every device and in every thread.
#[derive(Debug)]
pub struct RandomWeights(StdRng);

impl RandomWeights {
    /// Parameters drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    fn normal(&mut self) -> f32 {
        // Box and Muller; 1 - u keeps the logarithm finite.
        let (u, v): (f64, f64) = (self.0.random(), self.0.random());
        ((-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }
}

impl Weights for RandomWeights {
    fn tensor(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor> {
        let len = shape.iter().product();
        let values = match init {
            Init::Constant(value) => vec![value; len],
            Init::Linear { fan_in } => {
                let bound = (1.0 / fan_in as f32).sqrt();
                (0..len)
                    .map(|_| self.0.random_range(-bound..=bound))
                    .collect()
            }
            Init::Normal(deviation) => (0..len).map(|_| self.normal() * deviation).collect(),
            Init::FirstTap { taps, width } => {
                let first = |at: usize| (at / width).is_multiple_of(taps);
                (0..len).map(|at| f32::from(u8::from(first(at)))).collect()
            }
        };
        Ok(NamedTensor::from_f32(name, shape, values))
    }
}

/// Parameters of a folder; every one asked for must be there, in its shape.
pub struct FolderWeights<'a> {
    folder: &'a ModelFolder,
    prefix: &'static str,
    taken: Vec<String>,
    /// A matrix of each layer, the embedding and the head, and whether one of its matrices is more than zeros.
    filled: BTreeMap<String, (String, bool)>,
}

impl<'a> FolderWeights<'a> {
    /// Reads from `folder`, where every name starts with `prefix`, except those that start with `lm_head.`.
    pub fn new(folder: &'a ModelFolder, prefix: &'static str) -> Self {
        Self {
            folder,
            prefix,
            taken: Vec::new(),
            filled: BTreeMap::new(),
        }
    }

    /// Fails if the folder holds a tensor that nothing asked for, other than `ignored`, or if nothing was ever written to a layer,
    /// the embedding or the head.
    pub fn finish(self, ignored: &[String]) -> Result<()> {
        self.folder.check_names(&self.taken, ignored)?;
        match self.filled.into_iter().find(|(_, (_, filled))| !filled) {
            None => Ok(()),
            Some((of, (tensor, _))) => Err(Error::Empty {
                file: self.folder.info(&tensor)?.file.clone(),
                of: format!("`{of}`"),
                tensor,
            }),
        }
    }

    /// Remembers whether a matrix holds anything.
    fn look(&mut self, name: &str, bytes: &[u8]) {
        let Some(part) = part_of(name) else { return };
        let entry = self.filled.entry(part.to_owned());
        let (_, filled) = entry.or_insert_with(|| (name.to_owned(), false));
        // Ends at the first byte in all that was written to.
        *filled = *filled || !is_empty(bytes);
    }
}

impl Weights for FolderWeights<'_> {
    fn tensor(&mut self, name: &str, shape: &[usize], _: Init) -> Result<NamedTensor> {
        let name = name_in_folder(self.prefix, name);
        let (dtype, bytes) = self.folder.read_bytes(&name, shape)?;
        if !dtype.is_float() {
            return Err(spectrain_checkpoints::Error::ElementType {
                path: self.folder.info(&name)?.file.clone(),
                name,
                mismatch: Mismatch::new("F32, F16 or BF16", dtype),
            }
            .into());
        }
        self.taken.push(name.clone());
        if shape.len() > 1 {
            self.look(&name, &bytes);
        }
        Ok(NamedTensor {
            name,
            shape: shape.to_vec(),
            dtype,
            bytes,
        })
    }
}

/// The name of a parameter in a folder whose names start with `prefix`, except those that start with `lm_head.`.
pub(crate) fn name_in_folder(prefix: &str, name: &str) -> String {
    match name.starts_with("lm_head.") {
        true => name.to_owned(),
        false => format!("{prefix}{name}"),
    }
}

/// Whether all elements of a tensor are zero.
pub(crate) fn is_empty(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The part of a model that is never all zeros and has this tensor: its layer, `model.layers.3`, the embedding or the head.
fn part_of(name: &str) -> Option<&str> {
    if let Some(at) = name.find("layers.").map(|at| at + "layers.".len()) {
        let number = name[at..].find('.')?;
        return Some(&name[..at + number]);
    }
    let parts = ["embed_tokens.weight", "lm_head.weight"];
    parts
        .iter()
        .any(|part| name.ends_with(part))
        .then_some(name)
}

/// Parameters already in memory, such as those of a drafter's folder.
#[derive(Debug)]
pub struct TensorWeights {
    tensors: BTreeMap<String, NamedTensor>,
    source: String,
}

impl TensorWeights {
    /// Parameters of `tensors`, which came from `source`.
    pub fn new(tensors: Vec<NamedTensor>, source: impl Into<String>) -> Self {
        Self {
            tensors: tensors.into_iter().map(|t| (t.name.clone(), t)).collect(),
            source: source.into(),
        }
    }

    /// Names nothing has asked for yet.
    pub fn left(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }
}

impl Weights for TensorWeights {
    fn tensor(&mut self, name: &str, shape: &[usize], _: Init) -> Result<NamedTensor> {
        let problem = |got: String| Error::Config {
            file: self.source.clone().into(),
            key: name.to_owned(),
            mismatch: Mismatch::new(format!("a tensor of shape {shape:?}"), got),
        };
        match self.tensors.get(name) {
            None => Err(problem("none".into())),
            Some(found) if found.shape != shape => Err(problem(format!("{:?}", found.shape))),
            Some(_) => self
                .tensors
                .remove(name)
                .ok_or_else(|| problem("none".into())),
        }
    }
}

/// A place in the tree of modules: the source, the names above, and where tensors go.
pub struct Scope<'a> {
    source: &'a mut dyn Weights,
    path: String,
    device: &'a Device,
    dtype: DType,
    matrices: Matrices,
}

/// How matrices that are multiplied with are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Matrices {
    /// In the type that is computed in.
    Computed,
    /// In bf16 where the file has them so, else in the type that is computed in.
    Stored,
    /// In eight bits.
    Int8,
    /// In the type that is computed in; those that read the same, side by side.
    Fused,
}

/// Whether fewer products are faster on a device: on the CPU each reads its matrix, and no more.
pub(crate) fn fuses_on(device: &Device) -> bool {
    *device != Device::flex()
}

/// The type of a frozen model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrozenType {
    /// What is computed in.
    pub dtype: DType,
    /// Whether matrices of layers are held in eight bits, each thirty-two elements of a column with a scale. On the CPU alone.
    pub int8: bool,
    /// How the CPU takes products where it computes over whole texts, and not where it decodes.
    pub precision: Precision,
}

impl FrozenType {
    /// What it is called where decoding is reported.
    pub fn name(self) -> &'static str {
        if self.int8 { "INT8" } else { self.dtype.name() }
    }

    /// What it is called where whole texts are computed over.
    pub fn name_over_texts(self) -> &'static str {
        match self.precision {
            Precision::Bf16 => DType::BF16.name(),
            Precision::F32 => self.name(),
        }
    }
}

impl From<DType> for FrozenType {
    fn from(dtype: DType) -> Self {
        Self {
            dtype,
            int8: false,
            precision: Precision::F32,
        }
    }
}

impl<'a> Scope<'a> {
    /// The root: parameters of `source` as `dtype` on `device`.
    pub fn root(source: &'a mut dyn Weights, device: &'a Device, dtype: DType) -> Self {
        Self {
            source,
            path: String::new(),
            device,
            dtype,
            matrices: Matrices::Computed,
        }
    }

    /// The same for a frozen model, whose matrices stay in bf16 where the file has them so and they can be read from it: on
    /// the CPU, where half of the bytes are half of what decoding waits for, and products are the same bits.
    /// With `int8` in eight bits. On other devices those that read the same are one.
    pub fn frozen(self, int8: bool) -> Self {
        let matrices = match (fuses_on(self.device), int8) {
            (true, _) => Matrices::Fused,
            (false, false) => Matrices::Stored,
            (false, true) => Matrices::Int8,
        };
        Self { matrices, ..self }
    }

    /// The same with all parameters in the type that is computed in, as others share them.
    pub fn shared(self) -> Self {
        Self {
            matrices: Matrices::Computed,
            ..self
        }
    }

    /// Whether linear layers that read the same are to be one product.
    pub(crate) fn fuses(&self) -> bool {
        self.matrices == Matrices::Fused
    }

    /// The module `name` below this one.
    pub fn child(&mut self, name: impl std::fmt::Display) -> Scope<'_> {
        Scope {
            path: format!("{}{name}.", self.path),
            source: self.source,
            device: self.device,
            dtype: self.dtype,
            matrices: self.matrices,
        }
    }

    /// The device parameters are made on.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// A vector parameter.
    pub fn vector(&mut self, name: &str, len: usize, init: Init) -> Result<Param<Tensor<1>>> {
        let tensor = self.take(name, &[len], init)?;
        Ok(self.parameter(tensor))
    }

    /// A parameter of any rank, as in the file.
    pub fn tensor<const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; D],
        init: Init,
    ) -> Result<Param<Tensor<D>>> {
        let tensor = self.take(name, &shape, init)?;
        Ok(self.parameter(tensor))
    }

    /// A matrix parameter `[rows, columns]`, as in the file.
    pub fn matrix(
        &mut self,
        name: &str,
        shape: [usize; 2],
        init: Init,
    ) -> Result<Param<Tensor<2>>> {
        let tensor = self.take(name, &shape, init)?;
        Ok(self.parameter(tensor))
    }

    /// A matrix parameter that the file holds as `[d_out, d_in]` and the module as `[d_in, d_out]`.
    pub fn transposed(
        &mut self,
        name: &str,
        [d_in, d_out]: [usize; 2],
        init: Init,
    ) -> Result<Param<Tensor<2>>> {
        let mut tensor = self.stored(name, &[d_out, d_in], init)?;
        if self.matrices == Matrices::Int8 && int8::fits(d_in) && !is_hollow(&tensor) {
            let values = tensor.to_f32()?;
            return Ok(Param::from_tensor(int8::held(&values, [d_in, d_out])));
        }
        let is_kept = matches!(self.matrices, Matrices::Stored | Matrices::Int8)
            && tensor.dtype == DType::BF16;
        if !is_kept {
            tensor = tensor.cast(self.dtype)?;
        }
        if !is_hollow(&tensor) {
            let weight = transposed_from(tensor, self.device, is_untrained_on(self.device));
            return Ok(Param::from_tensor(weight));
        }
        tensor.shape = vec![d_in, d_out];
        Ok(self.parameter(tensor))
    }

    /// A matrix parameter `[count, d_in, d_out]` of `count` modules, each of which the file holds by itself as
    /// `[d_out, d_in]`: `0.NAME.weight`, `1.NAME.weight` and so on.
    pub fn stacked(
        &mut self,
        name: &str,
        count: usize,
        [d_in, d_out]: [usize; 2],
        init: Init,
    ) -> Result<Param<Tensor<3>>> {
        let mut stacked = NamedTensor {
            name: format!("{}{name}", self.path),
            shape: vec![count, d_in, d_out],
            dtype: self.dtype,
            bytes: Vec::new(),
        };
        for index in 0..count {
            let one = self.take(&format!("{index}.{name}.weight"), &[d_out, d_in], init)?;
            if !is_hollow(&one) {
                // Grown by what was found: what a file claims must not decide how much memory is asked for.
                stacked.bytes.extend(transpose(&one.bytes, d_out, d_in));
            }
        }
        Ok(self.parameter(stacked))
    }

    fn take(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor> {
        Ok(self.stored(name, shape, init)?.cast(self.dtype)?)
    }

    /// A tensor in the type that the source has.
    fn stored(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor> {
        let name = format!("{}{name}", self.path);
        self.source.tensor(&name, shape, init)
    }

    fn parameter<const D: usize>(&self, tensor: NamedTensor) -> Param<Tensor<D>> {
        if !is_hollow(&tensor) {
            return Param::from_tensor(tensor_from(tensor, self.device));
        }
        let shape = Shape::from(tensor.shape);
        let zeros = {
            let shape = shape.clone();
            move |device: &Device, _| Tensor::zeros(shape, device)
        };
        Param::uninitialized(ParamId::new(), zeros, self.device.clone(), true, shape)
    }
}

/// Whether a source gave a name and a shape, and no values.
fn is_hollow(tensor: &NamedTensor) -> bool {
    tensor.bytes.is_empty() && tensor.shape.iter().product::<usize>() > 0
}

/// Transposes a `[rows, columns]` matrix of elements of any size.
fn transpose(bytes: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    const BLOCK: usize = 32;
    if rows * columns == 0 {
        return Vec::new();
    }
    let size = bytes.len() / (rows * columns);
    let mut out = vec![0; bytes.len()];
    for row_block in (0..rows).step_by(BLOCK) {
        for column_block in (0..columns).step_by(BLOCK) {
            for row in row_block..rows.min(row_block + BLOCK) {
                for column in column_block..columns.min(column_block + BLOCK) {
                    let from = (row * columns + column) * size;
                    let to = (column * rows + row) * size;
                    out[to..to + size].copy_from_slice(&bytes[from..from + size]);
                }
            }
        }
    }
    out
}

/// A tensor of the file's element type on `device`.
pub fn tensor_from<const D: usize>(tensor: NamedTensor, device: &Device) -> Tensor<D> {
    let dtype = match tensor.dtype {
        DType::BF16 => BurnDType::BF16,
        DType::F16 => BurnDType::F16,
        _ => BurnDType::F32,
    };
    let data = TensorData::from_bytes_vec(tensor.bytes, tensor.shape, dtype);
    Tensor::from_data(data, (device, dtype))
}

/// Whether parameters on this device are outside of any graph and on the CPU: products with few rows read matrices in the file's
/// order there. Those that are trained stand in their own order, in which the optimiser leaves them: products of few rows are added
/// up in another order otherwise, and a training that is taken up again would end in other bits.
fn is_untrained_on(device: &Device) -> bool {
    *device == Device::flex() && !device.is_autodiff()
}

/// A matrix that the file holds as `[d_out, d_in]`, as `[d_in, d_out]`; in memory in the file's order, or in its own.
fn transposed_from<const D: usize>(
    mut tensor: NamedTensor,
    device: &Device,
    in_file_order: bool,
) -> Tensor<D> {
    if in_file_order {
        return tensor_from::<D>(tensor, device).transpose();
    }
    tensor.bytes = transpose(&tensor.bytes, tensor.shape[0], tensor.shape[1]);
    tensor.shape.reverse();
    tensor_from(tensor, device)
}

/// Every parameter of `module` under its Hugging Face name and in its layout, as f32.
pub fn export<M: Module>(module: &M) -> Vec<NamedTensor> {
    let mut exporter = Exporter::default();
    module.visit(&mut exporter);
    exporter.tensors
}

#[derive(Default)]
struct Exporter {
    place: Place,
    tensors: Vec<NamedTensor>,
}

impl ModuleVisitor for Exporter {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.place.enter(name, container_type);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = host_f32(param.val());
        if let Some((modules, name)) = self.place.stack::<D>() {
            let [count, d_in, d_out] = param.val().dims()[..] else {
                unreachable!("matrices of several modules")
            };
            let each = values.chunks(values.len() / count).enumerate();
            self.tensors.extend(each.map(|(index, values)| {
                let name = format!("{modules}.{index}.{name}.weight");
                let mut one = NamedTensor::from_f32(name, [d_out, d_in], values.to_vec());
                one.bytes = transpose(&one.bytes, d_in, d_out);
                one
            }));
            return;
        }
        let mut tensor = NamedTensor::from_f32(self.place.name(), param.val().dims(), values);
        if self.place.is_linear_weight::<D>() {
            tensor.bytes = transpose(&tensor.bytes, tensor.shape[0], tensor.shape[1]);
            tensor.shape.reverse();
        }
        self.tensors.push(tensor);
    }
}

/// The parameter that is added before experts are chosen, and does nothing else: rounded, it would choose others.
pub const CHOICE_BIAS: &str = "e_score_correction_bias";

/// `module` with every parameter in `dtype`, outside of any graph, but for those that only choose: these stay in f32, as engines
/// hold them. What is in that type already is shared, not copied.
pub fn held_in<M: Module>(module: M, dtype: BurnDType) -> M {
    module.map(&mut Caster {
        dtype,
        name: String::new(),
    })
}

struct Caster {
    dtype: BurnDType,
    /// Of the field that it is in.
    name: String,
}

impl ModuleMapper for Caster {
    fn enter_module(&mut self, name: &str, _: &str) {
        name.clone_into(&mut self.name);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, held, mapper) = param.consume();
        let dtype = match self.name == CHOICE_BIAS {
            true => BurnDType::F32,
            false => self.dtype,
        };
        Param::from_mapped_value(id, held.cast(dtype), mapper)
    }
}

/// Replaces every parameter of `module` by the tensor of its name, as [`export`] wrote them, in the type that it was in. `source` is named
/// in errors.
///
/// # Errors
/// A tensor is missing, left over, or of another shape.
pub fn import<M: Module>(module: M, tensors: Vec<NamedTensor>, source: &str) -> Result<M> {
    let mut importer = Importer {
        place: Place::default(),
        weights: TensorWeights::new(tensors, source),
        error: None,
    };
    let module = module.map(&mut importer);
    if let Some(error) = importer.error {
        return Err(error);
    }
    match importer.weights.left().first() {
        None => Ok(module),
        Some(left) => Err(Error::Config {
            file: source.into(),
            key: (*left).to_owned(),
            mismatch: Mismatch::new("no such tensor", "one"),
        }),
    }
}

struct Importer {
    place: Place,
    weights: TensorWeights,
    error: Option<Error>,
}

impl ModuleMapper for Importer {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.place.enter(name, container_type);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, old, mapper) = param.consume();
        let mut shape = old.dims().to_vec();
        let transposed = self.place.is_linear_weight::<D>();
        if transposed {
            shape.reverse();
        }
        let name = self.place.name();
        let device = old.device();
        let plain = device.clone().without_autodiff();
        let new = match self.weights.tensor(&name, &shape, Init::Constant(0.0)) {
            Err(error) => {
                self.error.get_or_insert(error);
                return Param::from_mapped_value(id, old, mapper);
            }
            // In memory as those that a folder is read into: sums are then taken in the same order.
            Ok(tensor) if transposed => transposed_from(tensor, &plain, is_untrained_on(&device)),
            Ok(tensor) => tensor_from(tensor, &plain),
        };
        let new = lift(new.cast(old.dtype()), &device).set_require_grad(old.is_require_grad());
        Param::from_mapped_value(id, new, mapper)
    }
}

/// Where a walk over a module is: the names of the fields above, each with the type that holds it.
#[derive(Default)]
struct Place(Vec<(String, String)>);

impl Place {
    fn enter(&mut self, name: &str, container: &str) {
        let name = match (container, name) {
            // A layer has one of two feed-forward parts, or of two kinds of attention, under the same name in files.
            ("Struct:DecoderLayer", "sparse_mlp") | ("Struct:MtpLayer", "mixture_mlp") => "mlp",
            ("Struct:MtpLayer" | "Struct:EagleLayer", "latent_attn") => "self_attn",
            ("Vec", _) if self.is_only_one() => "",
            _ => name,
        };
        self.0.push((name.to_owned(), container.to_owned()));
    }

    /// Whether it is in a vector that holds one module at most, which is under the vector's name in files.
    fn is_only_one(&self) -> bool {
        let last = self.0.last();
        last.is_some_and(|(name, holder)| name == "self_attn" && holder == "Struct:EagleLayer")
    }

    fn leave(&mut self) {
        self.0.pop();
    }

    /// The parameter's name in files.
    fn name(&self) -> String {
        names_in(&self.0).join(".")
    }

    /// Of a parameter that [`Scope::stacked`] made: the name of the modules in files, and that within each of them.
    fn stack<const D: usize>(&self) -> Option<(String, &str)> {
        let ((name, kind), above) = self.0.split_last()?;
        (D == 3 && kind == "Struct:Experts").then(|| (names_in(above).join("."), name.as_str()))
    }

    /// Whether the parameter is the weight of a [`Linear`](crate::Linear), which files hold transposed.
    fn is_linear_weight<const D: usize>(&self) -> bool {
        D == 2
            && self
                .0
                .last()
                .is_some_and(|(_, kind)| kind == "Struct:Linear")
    }
}

/// The names of a place that are in files.
fn names_in(place: &[(String, String)]) -> Vec<&str> {
    let names = place.iter().map(|(name, _)| name.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// The elements of a tensor on the host, in row order.
///
/// # Panics
/// The device failed.
pub fn host_f32<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor
        .try_into_vec_as::<f32>()
        .unwrap_or_else(|error| panic!("cannot read a tensor from its device: {error:?}"))
}

/// Runs `change` over the elements of a tensor on the host, in row order, and returns the changed tensor. On the CPU nothing is copied,
/// unless the tensor is a view or somebody else holds it too.
///
/// # Panics
/// The device failed, or the tensor has elements of another type.
pub fn on_host<const D: usize, E: Element, R>(
    tensor: Tensor<D>,
    change: impl FnOnce(&mut [E]) -> R,
) -> (Tensor<D>, R) {
    let (device, dtype) = (tensor.device(), tensor.dtype());
    let mut data = tensor.into_data();
    let result = match data.as_mut_slice::<E>() {
        Ok(values) => change(values),
        Err(error) => panic!("expected {:?} elements: {error:?}", E::dtype()),
    };
    (Tensor::from_data(data, (&device, dtype)), result)
}

/// A tensor outside any graph as part of the graph that parameters on `device` are in, if that is an autodiff device.
pub fn lift<const D: usize, K: burn::tensor::kind::Autodiff>(
    tensor: Tensor<D, K>,
    device: &Device,
) -> Tensor<D, K> {
    match device.gradient_checkpointing_strategy() {
        None => tensor,
        Some(strategy) => tensor
            .autodiff()
            .with_gradient_checkpointing_strategy(strategy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bias, Linear};

    /// Reads these tensors of a folder.
    fn read(tensors: &[NamedTensor]) -> Result<()> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        let config = serde_json::json!({"model_type": "qwen3"});
        spectrain_checkpoints::write_folder(&path, &config, tensors, &[]).unwrap();
        let folder = ModelFolder::open(&path).unwrap();
        let mut weights = FolderWeights::new(&folder, "");
        for tensor in tensors {
            weights.tensor(&tensor.name, &tensor.shape, Init::Constant(0.0))?;
        }
        weights.finish(&[])
    }

    #[test]
    fn a_part_of_a_model_that_holds_nothing_but_zeros_is_refused() {
        let tensor = |name: &str, filled: bool| {
            let values = if filled {
                vec![0.0, 0.0, 0.0, 1.0]
            } else {
                vec![0.0; 4]
            };
            NamedTensor::from_f32(name, [2, 2], values)
        };
        let all = |empty: &[&str]| {
            let names = [
                "model.embed_tokens.weight",
                "model.layers.0.mlp.up_proj.weight",
                "model.layers.10.mlp.up_proj.weight",
                "model.layers.10.self_attn.q_proj.weight",
                "lm_head.weight",
            ];
            read(&names.map(|name| tensor(name, !empty.contains(&name))))
        };
        all(&[]).unwrap();
        // A matrix alone may be zeros.
        all(&["model.layers.10.mlp.up_proj.weight"]).unwrap();
        for (empty, part) in [
            (
                &["model.embed_tokens.weight"][..],
                "`model.embed_tokens.weight`",
            ),
            (&["lm_head.weight"], "`lm_head.weight`"),
            (&["model.layers.0.mlp.up_proj.weight"], "`model.layers.0`"),
            (
                &[
                    "model.layers.10.mlp.up_proj.weight",
                    "model.layers.10.self_attn.q_proj.weight",
                ],
                "`model.layers.10`",
            ),
        ] {
            let refused = all(empty).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("every matrix of {part} holds")),
                "{refused}"
            );
            assert!(refused.contains("model.safetensors"), "{refused}");
        }
        // Heads of drafters start as zeros.
        read(&[tensor("0.0.linear.weight", false)]).unwrap();
    }

    #[test]
    fn what_is_imported_gives_the_bits_of_what_is_read() {
        let [d_in, d_out] = [300, 70];
        let values = |seed: usize, count: usize| -> Vec<f32> {
            let value = |at: usize| ((at * 7919 + seed) % 1009) as f32 / 504.5 - 1.0;
            (0..count).map(value).collect()
        };
        let tensors = || {
            vec![NamedTensor::from_f32(
                "weight",
                [d_out, d_in],
                values(1, d_in * d_out),
            )]
        };
        let device = Device::flex();
        let made = |weights: &mut dyn Weights| {
            let mut scope = Scope::root(weights, &device, DType::F32);
            Linear::new(&mut scope, d_in, d_out, Bias::Without).unwrap()
        };
        let read = made(&mut TensorWeights::new(tensors(), "file"));
        let imported = import(made(&mut RandomWeights::new(3)), tensors(), "memory").unwrap();
        for rows in [1, 5, 300] {
            let x = TensorData::new(values(2, rows * d_in), [rows, d_in]);
            let x = Tensor::<2>::from_data(x, &device);
            let [expected, found] =
                [&read, &imported].map(|linear| host_f32(linear.forward(x.clone())));
            assert_eq!(found, expected, "{rows} rows");
        }
    }
}
