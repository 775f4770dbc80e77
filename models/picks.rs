//! Some places of the rows of a batch, where nothing is wanted of the others.
use std::mem::MaybeUninit;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::IntTensorOps as _;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata as _, backend_extension};
use burn::prelude::*;
use burn::tensor::{DType, IntDType, Shape, bf16};

use crate::fresh::written_rows;
use crate::mask::Mask;
use crate::sight::AtATime;

/// What share of the places has to be left out for it to pay: one in so many.
const WORTH_IT: usize = 16;

/// Places of the rows of a batch, as many of each row, none of them twice.
#[derive(Debug, Clone)]
pub struct Picks {
    on_host: Arc<OnHost>,
    /// `[rows * each]`: places of the batch.
    places: Tensor<1, Int>,
    /// `[rows * length]`: of each place of the batch its number among those picked; as many as these are where it is not.
    numbers: Tensor<1, Int>,
}

#[derive(Debug)]
struct OnHost {
    /// How many there are of each row.
    each: usize,
    /// Row after row, ascending.
    places: Vec<usize>,
    numbers: Vec<usize>,
}

impl Picks {
    /// All places of so many rows of such a length.
    pub fn all([rows, length]: [usize; 2], device: &Device) -> Self {
        let places: Vec<usize> = (0..rows * length).collect();
        Self::new(length, (places.clone(), places), device)
    }

    /// Those that are `wanted` of rows of such a `length`, one flag for each place of the batch, and of rows with fewer of them than others
    /// have as many more places. On a GPU there are a multiple of as many as are [taken at a time](AtATime) of each row, so that few
    /// sizes come up. All of them where that leaves out next to nothing.
    ///
    /// # Panics
    /// The flags make up no whole number of rows.
    pub fn of(wanted: &[bool], length: usize, device: &Device) -> Self {
        assert_eq!(wanted.len() % length.max(1), 0, "flags of whole rows");
        let rows = || wanted.chunks(length.max(1));
        let count = |row: &[bool]| row.iter().filter(|&&wanted| wanted).count();
        let most = rows().map(count).max().unwrap_or(0).max(1);
        let each = most.next_multiple_of(AtATime::on(device).aligned);
        if each + length.div_ceil(WORTH_IT) > length {
            return Self::all([rows().len(), length], device);
        }
        let mut places = Vec::with_capacity(rows().len() * each);
        for (row, wanted) in rows().enumerate() {
            let mut more = each - count(wanted);
            for (at, &wanted) in wanted.iter().enumerate() {
                if wanted || more > 0 {
                    more -= usize::from(!wanted);
                    places.push(row * length + at);
                }
            }
        }
        let mut numbers = vec![places.len(); wanted.len()];
        for (number, &place) in places.iter().enumerate() {
            numbers[place] = number;
        }
        Self::new(each, (places, numbers), device)
    }

    fn new(each: usize, (places, numbers): (Vec<usize>, Vec<usize>), device: &Device) -> Self {
        let ints = |all: &[usize]| {
            let all: Vec<i64> = all.iter().map(|&one| one as i64).collect();
            Tensor::from_ints(all.as_slice(), device)
        };
        Self {
            places: ints(&places),
            numbers: ints(&numbers),
            on_host: Arc::new(OnHost {
                each,
                places,
                numbers,
            }),
        }
    }

    /// Whether nothing is left out.
    pub fn is_all(&self) -> bool {
        self.on_host.places.len() == self.on_host.numbers.len()
    }

    /// The same outside of any graph.
    pub(crate) fn without_autodiff(&self) -> Self {
        Self {
            on_host: self.on_host.clone(),
            places: self.places.clone().without_autodiff(),
            numbers: self.numbers.clone().without_autodiff(),
        }
    }

    /// The number, among those picked, of a place of the batch.
    ///
    /// # Panics
    /// It is not picked.
    pub fn number(&self, place: usize) -> usize {
        let number = self.on_host.numbers[place];
        assert!(number < self.on_host.places.len(), "{place} is not picked");
        number
    }

    /// `[batch, seq, width]` to `[batch, each, width]`, on the device, and in the graph or in none, that the picks were made for.
    pub fn states(&self, x: Tensor<3>) -> Tensor<3> {
        match self.is_all() {
            true => x,
            false => self.picked(x, &[self.places.clone(), self.numbers.clone()]),
        }
    }

    /// The same of several states each, of what stands `by` places further on in the batch. At its end it is the last that does, and no
    /// gradient comes back to that from there.
    pub(crate) fn states_behind(&self, states: &[Tensor<3>], by: usize) -> Vec<Tensor<3>> {
        let [all] = self.numbers.dims();
        let (by, last) = (by.min(all), all.saturating_sub(1) as i64);
        let places = (self.places.clone() + by as i64).clamp_max(last);
        let nobody = self.on_host.places.len() as i64;
        let first = Tensor::full([by], nobody, (&self.numbers.device(), self.numbers.dtype()));
        let numbers = match all - by {
            0 => first,
            left => Tensor::cat(vec![first, self.numbers.clone().narrow(0, 0, left)], 0),
        };
        let of = [places, numbers];
        let states = states.iter().map(|x| self.picked(x.clone(), &of));
        states.collect()
    }

    fn picked(&self, x: Tensor<3>, of: &[Tensor<1, Int>; 2]) -> Tensor<3> {
        let [batch, seq, width] = x.dims();
        let flat: Tensor<2> = x.reshape([batch * seq, width]);
        let [places, numbers] = of.clone().map(Tensor::into_dispatch);
        let picked = Dispatch::picked(flat.into_dispatch(), places, numbers);
        Tensor::<2>::from_dispatch(picked).reshape([batch, self.on_host.each, width])
    }

    /// `[batch, seq]` to `[batch, each]`, as [`states`](Self::states).
    pub(crate) fn ids(&self, x: Tensor<2, Int>) -> Tensor<2, Int> {
        let [batch, _] = x.dims();
        if self.is_all() {
            return x;
        }
        let picked = x.flatten::<1>(0, 1).select(0, self.places.clone());
        picked.reshape([batch, self.on_host.each])
    }

    /// The mask of the queries at these places.
    pub(crate) fn mask(&self, mask: &Mask) -> Mask {
        if self.is_all() {
            return mask.clone();
        }
        let OnHost { each, places, .. } = &*self.on_host;
        Mask::new(mask.sight().of_places(*each, places), &self.places.device())
    }
}

/// See [`Picks::states`].
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff, Fusion: cfg(feature = "fusion"))]
trait Picked: Backend {
    /// The rows at `places`.
    ///
    /// # Shapes
    /// - x: `[rows, width]`
    /// - places: `[picked]`
    /// - numbers: `[rows]`: of each row which of those picked gives its gradient, or how many are picked
    /// - output: `[picked, width]`
    #[fusion(meta = |x, places, _| picked_of(x, places))]
    fn picked(
        x: FloatTensor<Self>,
        places: IntTensor<Self>,
        _numbers: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::float_select(x, 0, places)
    }

    /// The rows of `gradient` with these numbers, and zeros where a number is that of none.
    ///
    /// # Shapes
    /// - gradient: `[picked, width]`
    /// - numbers: `[rows]`
    /// - output: `[rows, width]`
    #[fusion(default)]
    fn put_back(gradient: FloatTensor<Self>, numbers: IntTensor<Self>) -> FloatTensor<Self> {
        let zeros = Shape::from([1, gradient.shape()[1]]);
        let zeros = Self::float_zeros(zeros, &gradient.device(), gradient.dtype().into());
        let all = Self::float_cat(vec![gradient, zeros], 0);
        Self::float_select(all, 0, numbers)
    }
}

#[cfg(feature = "fusion")]
fn picked_of(x: &TensorSpec, places: &TensorSpec) -> TensorSpec {
    TensorSpec::new(Shape::from([places.shape[0], x.shape[1]]), x.dtype)
}

/// By all threads.
impl Picked for Flex {
    fn picked(x: FlexTensor, places: FlexTensor, _: FlexTensor) -> FlexTensor {
        rows_at(x, places, 0)
    }

    fn put_back(gradient: FlexTensor, numbers: FlexTensor) -> FlexTensor {
        rows_at(gradient, numbers, 1)
    }
}

/// The rows of a matrix at these places, as if so many rows of zeros stood `behind` its last one.
fn rows_at(x: FlexTensor, places: FlexTensor, behind: i64) -> FlexTensor {
    let x = x.to_contiguous();
    let [rows, width] = [0, 1].map(|dim| x.layout().shape()[dim]);
    let own = x.layout().start_offset()..x.layout().start_offset() + rows * width;
    let places = Flex::int_cast(places, IntDType::I64).to_contiguous();
    let start = places.layout().start_offset();
    let count = places.layout().num_elements();
    let places = &places.storage::<i64>()[start..start + count];
    let shape = [count, width];
    let end = rows as i64 + behind;
    assert!(places.iter().all(|&at| at < end), "a row of another matrix");
    let data = match x.dtype() {
        DType::F32 => TensorData::new(copied(&x.storage::<f32>()[own], width, places), shape),
        DType::BF16 => TensorData::new(copied(&x.storage::<bf16>()[own], width, places), shape),
        other => panic!("rows of the type {other:?}"),
    };
    FlexTensor::from_data(data)
}

/// Rows of a `width`, of which those at these places are copied, and zeros for places behind the last.
fn copied<T: Copy + Default + Send + Sync>(rows: &[T], width: usize, places: &[i64]) -> Vec<T> {
    written_rows(places.len() * width, width, |number, row| {
        let start = places[number] as usize * width;
        match rows.get(start..start + width) {
            Some(found) => {
                row.write_copy_of_slice(found);
            }
            None => row.fill(MaybeUninit::new(T::default())),
        }
    })
}

#[cfg(feature = "cube")]
impl Picked for burn_cubecl::CubeBackend {}

impl<B: Picked, C: CheckpointStrategy> Picked for Autodiff<B, C> {
    fn picked(
        x: FloatTensor<Self>,
        places: IntTensor<Self>,
        numbers: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (x, at_x) = x.into_parts();
        let picked = B::picked(x, places, numbers.clone());
        match PutBack.prepare::<C>([at_x]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(numbers, picked),
            OpsKind::UnTracked(prepared) => prepared.finish(picked),
        }
    }
}

/// Of [`Picked`]: each row takes the gradient that came for it, or zeros. Burn's own way back on a GPU adds one row after the other.
#[derive(Debug)]
struct PutBack;

impl<B: Picked> Backward<B, 1> for PutBack {
    type State = IntTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let numbers = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::put_back(gradient, numbers));
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;
    use crate::device::test_device;
    use crate::mask::Layout;
    use crate::weights::host_f32;

    /// Of two rows of 301 places: every third of the first from 100 on, and six of the second.
    fn wanted() -> Vec<bool> {
        let first = (0..301).map(|at| at >= 100 && at % 3 == 0);
        first.chain((0..301).map(|at| at > 294)).collect()
    }

    fn numbers(dtype: DType) -> Tensor<3> {
        let all = Tensor::<1, Int>::arange(0..602 * 5, &test_device()).float();
        (all % 251).reshape([2, 301, 5]).cast(dtype)
    }

    #[test]
    fn rows_have_as_many_places_each_and_all_that_are_wanted_are_among_them() {
        let picks = Picks::of(&wanted(), 301, &Device::flex());
        assert!(!picks.is_all());
        let OnHost { each, places, .. } = &*picks.on_host;
        assert_eq!((*each, places.len()), (67, 134));
        assert!(places.is_sorted_by(|one, next| one < next));
        assert!(places[..67].iter().all(|&at| at < 301) && places[67] >= 301);
        let is_wanted = wanted();
        for at in (0..602).filter(|&at| is_wanted[at]) {
            assert_eq!(places[picks.number(at)], at);
        }
        // Of 32 places one is too little.
        let but = |left_out: usize| (0..32).map(|at| at >= left_out).collect::<Vec<_>>();
        assert!(Picks::of(&but(1), 32, &Device::flex()).is_all());
        assert!(!Picks::of(&but(2), 32, &Device::flex()).is_all());
        assert!(Picks::of(&[], 7, &Device::flex()).is_all());
        let none = Picks::of(&[false; 9], 3, &Device::flex());
        assert_eq!(none.on_host.places, [0, 3, 6]);
    }

    #[test]
    fn states_are_those_of_the_places_and_gradients_come_back_to_them() {
        let device = test_device();
        for dtype in [DType::F32, DType::BF16] {
            let leaf = numbers(dtype).autodiff().require_grad();
            let picks = Picks::of(&wanted(), 301, &leaf.device());
            let found = picks.states(leaf.clone());
            let places = &picks.on_host.places;
            let all = host_f32(numbers(dtype));
            let expected: Vec<f32> = places
                .iter()
                .flat_map(|&at| all[at * 5..][..5].to_vec())
                .collect();
            assert_eq!(host_f32(found.clone().inner()), expected);
            let plain = picks.without_autodiff().states(numbers(dtype));
            assert_eq!(host_f32(plain), expected);
            let weights = (0..expected.len()).map(|at| (at % 13) as f32 + 1.0);
            let weights: Vec<f32> = weights.collect();
            let data = TensorData::new(weights.clone(), found.dims()).convert_dtype(dtype);
            let weighed = found * Tensor::from_data(data, (&leaf.device(), dtype));
            let gradients = weighed.cast(DType::F32).sum().backward();
            let mut expected = vec![0.0; 602 * 5];
            for (&place, weights) in places.iter().zip(weights.as_chunks::<5>().0) {
                expected[place * 5..][..5].copy_from_slice(weights);
            }
            assert_eq!(host_f32(leaf.grad(&gradients).unwrap()), expected);
        }
        let ids = Tensor::<1, Int>::arange(0..602, &device).reshape([2, 301]);
        let picks = Picks::of(&wanted(), 301, &device);
        let found = host_f32(picks.ids(ids).float());
        let expected = picks.on_host.places.iter().map(|&at| at as f32);
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn states_behind_places_are_read_and_gradients_come_back_to_them() {
        let device = test_device().autodiff();
        for (picks, by) in [
            (Picks::of(&wanted(), 301, &device), 3),
            (Picks::all([2, 301], &device), 7),
        ] {
            let leaf = numbers(DType::F32).autodiff().require_grad();
            let found = picks
                .states_behind(std::slice::from_ref(&leaf), by)
                .remove(0);
            let all = host_f32(numbers(DType::F32));
            let places = &picks.on_host.places;
            let row = |&at: &usize| all[(at + by).min(601) * 5..][..5].to_vec();
            let expected: Vec<f32> = places.iter().flat_map(row).collect();
            assert_eq!(host_f32(found.clone().inner()), expected);
            let weights: Vec<f32> = (0..expected.len()).map(|at| (at % 17) as f32).collect();
            let weighed = found.clone()
                * Tensor::from_data(TensorData::new(weights.clone(), found.dims()), &device);
            let gradients = weighed.sum().backward();
            let mut expected = vec![0.0; 602 * 5];
            for (&place, weights) in places.iter().zip(weights.as_chunks::<5>().0) {
                if place + by < 602 {
                    expected[(place + by) * 5..][..5].copy_from_slice(weights);
                }
            }
            assert_eq!(host_f32(leaf.grad(&gradients).unwrap()), expected);
        }
        // Further on than anything stands.
        let picks = Picks::all([1, 3], &test_device());
        let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &test_device()).reshape([1, 3, 1]);
        let found = picks.states_behind(&[x], 5).remove(0);
        assert_eq!(host_f32(found), [3.0, 3.0, 3.0]);
    }

    #[test]
    fn a_query_sees_what_its_place_sees() {
        let device = test_device();
        let mask = Layout::whole([2, 301], &device).mask(Some(40));
        let picks = Picks::of(&wanted(), 301, &device);
        let found = picks.mask(&mask).sight().entries();
        let all = mask.sight().entries();
        for (found, &place) in found.chunks(301).zip(&picks.on_host.places) {
            assert_eq!(found, &all[place * 301..][..301], "{place}");
        }
        assert_eq!(picks.mask(&mask).sight().sequences(), 2);
    }
}
