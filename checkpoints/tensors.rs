//! Tensors as names, shapes and little-endian bytes, and the safetensors files that hold them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use half::{bf16, f16};
use serde_json::{Map, Value, json};

use crate::atomic;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// A tensor outside any device: its elements are little-endian, row-major, without gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// The name in the file.
    pub name: String,
    /// The size along each axis; empty for a scalar.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub dtype: DType,
    /// The elements.
    pub bytes: Vec<u8>,
}

impl NamedTensor {
    /// A tensor of 32-bit floats.
    ///
    /// # Panics
    /// If the shape does not hold as many elements as there are values.
    pub fn from_f32(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        values: Vec<f32>,
    ) -> Self {
        let bytes = encode(values.len(), values.iter().map(|value| value.to_le_bytes()));
        Self::checked(name.into(), shape.into(), DType::F32, bytes)
    }

    /// A tensor of 64-bit integers.
    ///
    /// # Panics
    /// If the shape does not hold as many elements as there are values.
    pub fn from_i64(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        values: Vec<i64>,
    ) -> Self {
        let bytes = encode(values.len(), values.iter().map(|value| value.to_le_bytes()));
        Self::checked(name.into(), shape.into(), DType::I64, bytes)
    }

    /// A tensor of truth values, one byte each.
    ///
    /// # Panics
    /// If the shape does not hold as many elements as there are values.
    pub fn from_bool(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        values: Vec<bool>,
    ) -> Self {
        let bytes = values.into_iter().map(u8::from).collect();
        Self::checked(name.into(), shape.into(), DType::Bool, bytes)
    }

    fn checked(name: String, shape: Vec<usize>, dtype: DType, bytes: Vec<u8>) -> Self {
        let tensor = Self {
            name,
            shape,
            dtype,
            bytes,
        };
        if let Err(error) = tensor.check() {
            panic!("{error}");
        }
        tensor
    }

    /// Shape and type must account for every byte.
    fn check(&self) -> Result<()> {
        let size = self
            .shape
            .iter()
            .try_fold(self.dtype.size(), |size, &axis| size.checked_mul(axis));
        if size == Some(self.bytes.len()) {
            return Ok(());
        }
        Err(self.wrong(format!(
            "shape {:?} of {} does not match its {} bytes",
            self.shape,
            self.dtype,
            self.bytes.len()
        )))
    }

    fn wrong(&self, reason: String) -> Error {
        Error::Tensor {
            name: self.name.clone(),
            reason,
        }
    }

    /// The same values as `F32`, `F16` or `BF16`, rounded to nearest. A finite value that would become infinite is an error.
    pub fn cast(self, dtype: DType) -> Result<NamedTensor> {
        if dtype == self.dtype {
            return Ok(self);
        }
        if !dtype.is_float() || !self.dtype.is_float() {
            return Err(self.wrong(format!("cannot cast {} to {dtype}", self.dtype)));
        }
        let values = self.to_f32()?;
        let mut bytes = Vec::with_capacity(values.len() * dtype.size());
        for &value in &values {
            let rounded = match dtype {
                DType::F16 => {
                    let rounded = f16::from_f32(value);
                    bytes.extend(rounded.to_le_bytes());
                    rounded.to_f32()
                }
                DType::BF16 => {
                    let rounded = bf16::from_f32(value);
                    bytes.extend(rounded.to_le_bytes());
                    rounded.to_f32()
                }
                _ => {
                    bytes.extend(value.to_le_bytes());
                    value
                }
            };
            if rounded.is_infinite() && value.is_finite() {
                return Err(self.wrong(format!("the value {value:e} does not fit {dtype}")));
            }
        }
        Ok(NamedTensor {
            dtype,
            bytes,
            ..self
        })
    }

    /// The values of a float tensor as 32-bit floats.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        self.check()?;
        floats(self.dtype, &self.bytes)
            .ok_or_else(|| self.wrong(format!("expected F32, F16 or BF16, found {}", self.dtype)))
    }

    /// The values of an `I64` or `I32` tensor.
    pub fn to_i64(&self) -> Result<Vec<i64>> {
        self.check()?;
        match self.dtype {
            DType::I64 => Ok(decode(&self.bytes, i64::from_le_bytes)),
            DType::I32 => Ok(decode(&self.bytes, |raw| {
                i64::from(i32::from_le_bytes(raw))
            })),
            other => Err(self.wrong(format!("expected I64 or I32, found {other}"))),
        }
    }

    /// The values of a `Bool` tensor.
    pub fn to_bool(&self) -> Result<Vec<bool>> {
        self.check()?;
        match self.dtype {
            DType::Bool => Ok(self.bytes.iter().map(|&byte| byte != 0).collect()),
            other => Err(self.wrong(format!("expected BOOL, found {other}"))),
        }
    }
}

/// The elements of a float type as 32-bit floats; nothing for other types.
fn floats(dtype: DType, bytes: &[u8]) -> Option<Vec<f32>> {
    match dtype {
        DType::F32 => Some(decode(bytes, f32::from_le_bytes)),
        DType::F16 => Some(decode(bytes, |raw| f16::from_le_bytes(raw).to_f32())),
        DType::BF16 => Some(decode(bytes, |raw| bf16::from_le_bytes(raw).to_f32())),
        _ => None,
    }
}

/// Elements that are looked at together: few enough for the caches, enough for the processor to take many at once.
const TOGETHER: usize = 4096;

/// The first element of a float type that is infinite or no number; nothing for other types.
pub(crate) fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    /// All bits of an exponent set: infinite, or no number.
    fn position<const N: usize>(bytes: &[u8], is: impl Fn([u8; N]) -> bool) -> Option<usize> {
        let (elements, _) = bytes.as_chunks::<N>();
        // Without an early end in the middle, so that the loop runs on vectors.
        let holds_one = |chunk: &&[[u8; N]]| chunk.iter().fold(false, |any, &raw| any | is(raw));
        let before = elements
            .chunks(TOGETHER)
            .take_while(|chunk| !holds_one(chunk));
        let start = before.map(<[_]>::len).sum();
        let within = elements[start..].iter().position(|&raw| is(raw))?;
        Some(start + within)
    }
    match dtype {
        DType::F64 => position(bytes, |raw| {
            let exponent = 0x7ff0_0000_0000_0000;
            u64::from_le_bytes(raw) & exponent == exponent
        }),
        DType::F32 => position(bytes, |raw| {
            u32::from_le_bytes(raw) & 0x7f80_0000 == 0x7f80_0000
        }),
        DType::F16 => position(bytes, |raw| u16::from_le_bytes(raw) & 0x7c00 == 0x7c00),
        DType::BF16 => position(bytes, |raw| u16::from_le_bytes(raw) & 0x7f80 == 0x7f80),
        _ => None,
    }
}

fn encode<const N: usize>(count: usize, elements: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * N);
    elements.for_each(|element| bytes.extend_from_slice(&element));
    bytes
}

fn decode<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().map(|&raw| element(raw)).collect()
}

/// Writes or replaces a safetensors file. `format = pt`, which engines look for, is added to the metadata.
///
/// The same tensors give the same bytes: they are ordered by element size, so that each is aligned, and then by name.
pub fn write_safetensors(
    path: &Path,
    tensors: &[NamedTensor],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    tensors.iter().try_for_each(NamedTensor::check)?;
    let listed = tensors.iter().map(|tensor| Listed {
        name: &tensor.name,
        shape: &tensor.shape,
        dtype: tensor.dtype,
        of: tensor,
    });
    write_each(path, listed.collect(), metadata, &mut |tensor| {
        Ok(Cow::Borrowed(&tensor.bytes[..]))
    })
}

/// A tensor of a file that is being written, and what its elements come out of.
pub(crate) struct Listed<'a, T> {
    pub(crate) name: &'a str,
    pub(crate) shape: &'a [usize],
    pub(crate) dtype: DType,
    pub(crate) of: T,
}

impl<T> Listed<'_, T> {
    /// Bytes of its elements; nothing where that is no number.
    fn size(&self) -> Option<usize> {
        let mut axes = self.shape.iter();
        axes.try_fold(self.dtype.size(), |size, &axis| size.checked_mul(axis))
    }
}

/// The same, where the elements of each tensor are asked for when they are written.
pub(crate) fn write_each<'a, T>(
    path: &Path,
    mut tensors: Vec<Listed<T>>,
    metadata: &BTreeMap<String, String>,
    elements: &mut dyn FnMut(&T) -> Result<Cow<'a, [u8]>>,
) -> Result<()> {
    tensors.sort_by(|a, b| {
        let by_size = b.dtype.size().cmp(&a.dtype.size());
        by_size.then_with(|| a.name.cmp(b.name))
    });
    let header = header(&tensors, metadata)?;
    let mut failed = None;
    let written = atomic::write_with(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        tensors.iter().try_for_each(|tensor| {
            let bytes = elements(&tensor.of).map_err(|error| {
                failed = Some(error);
                io::Error::other("no elements")
            })?;
            debug_assert_eq!(Some(bytes.len()), tensor.size(), "{}", tensor.name);
            file.write_all(&bytes)
        })
    });
    match failed {
        // Why there are none says more than that they could not be written.
        Some(error) => Err(error),
        None => written,
    }
}

fn header<T>(tensors: &[Listed<T>], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let mut texts = metadata.clone();
    texts
        .entry("format".to_string())
        .or_insert_with(|| "pt".to_string());
    let mut header = Map::new();
    header.insert("__metadata__".to_string(), json!(texts));
    let mut names = BTreeSet::from(["__metadata__"]);
    let mut start = 0;
    for tensor in tensors {
        let wrong = |reason: &str| Error::Tensor {
            name: tensor.name.to_owned(),
            reason: reason.to_owned(),
        };
        if !names.insert(tensor.name) {
            return Err(wrong("the name is used twice or reserved"));
        }
        let size = tensor.size().and_then(|size| size.checked_add(start));
        let end = size.ok_or_else(|| wrong("its shape has no size"))?;
        let entry = json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.to_owned(), entry);
        start = end;
    }
    let mut bytes = Value::Object(header).to_string().into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    fn samples() -> Vec<NamedTensor> {
        vec![
            NamedTensor::from_bool("t2d", [3], vec![true, false, true]),
            NamedTensor::from_f32("b", [2, 2], vec![1.0, -2.5, 0.0, f32::MIN_POSITIVE]),
            NamedTensor::from_f32("a", [1], vec![1.0])
                .cast(DType::BF16)
                .unwrap(),
            NamedTensor::from_i64("d2t", [2], vec![-1, i64::MAX]),
        ]
    }

    #[test]
    fn the_safetensors_crate_reads_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        write_safetensors(
            &path,
            &samples(),
            &BTreeMap::from([("step".into(), "3".into())]),
        )
        .unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), 4);
        for tensor in samples() {
            let view = file.tensor(&tensor.name).unwrap();
            assert_eq!(view.dtype().to_string(), tensor.dtype.name());
            assert_eq!(
                (view.shape(), view.data()),
                (&tensor.shape[..], &tensor.bytes[..])
            );
        }
        let metadata = SafeTensors::read_metadata(&bytes).unwrap().1;
        let metadata = metadata.metadata().as_ref().unwrap();
        assert_eq!(
            (metadata["format"].as_str(), metadata["step"].as_str()),
            ("pt", "3")
        );
    }

    #[test]
    fn the_order_of_the_tensors_does_not_change_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        let mut reversed = samples();
        reversed.reverse();
        write_safetensors(&one, &samples(), &BTreeMap::new()).unwrap();
        write_safetensors(&two, &reversed, &BTreeMap::new()).unwrap();
        assert_eq!(std::fs::read(one).unwrap(), std::fs::read(two).unwrap());
    }

    #[test]
    fn a_name_used_twice_is_refused_and_the_old_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, "old").unwrap();
        let twice = [samples().remove(0), samples().remove(0)];
        let error = write_safetensors(&path, &twice, &BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("`t2d`"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn an_unwritable_place_is_named_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("absent").join("model.safetensors");
        let error = write_safetensors(&path, &samples(), &BTreeMap::new())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("absent") && error.contains("o such file"),
            "{error}"
        );
    }

    #[test]
    fn casts_round_to_nearest_and_refuse_what_does_not_fit() {
        let tensor = NamedTensor::from_f32("w", [3], vec![1.0, 1.0 + 1.0 / 128.0, -0.1]);
        let narrow = tensor.clone().cast(DType::BF16).unwrap();
        assert_eq!(narrow.to_f32().unwrap(), [1.0, 1.007_812_5, -0.100_097_656]);
        let widened = narrow.clone().cast(DType::F32).unwrap();
        assert_eq!(widened.cast(DType::BF16).unwrap(), narrow);
        let large = NamedTensor::from_f32("w", [1], vec![70_000.0]);
        assert!(large.clone().cast(DType::BF16).is_ok());
        assert!(
            large
                .cast(DType::F16)
                .unwrap_err()
                .to_string()
                .contains("does not fit F16")
        );
        assert!(tensor.cast(DType::I64).is_err());
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found_wherever_it_is() {
        for count in [1, 5, TOGETHER, 3 * TOGETHER + 7] {
            for at in [0, count / 2, count - 1] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut values = vec![f32::MAX; count];
                    values[count - 1] = bad;
                    values[at] = bad;
                    let expected = Some(at);
                    let single = NamedTensor::from_f32("w", [count], values.clone());
                    assert_eq!(first_not_finite(DType::F32, &single.bytes), expected);
                    let halves = values.iter().map(|&value| f16::from_f32(value.min(6e4)));
                    let bytes: Vec<u8> = halves.flat_map(f16::to_le_bytes).collect();
                    // The least of a number and infinity is the number.
                    let found = first_not_finite(DType::F16, &bytes);
                    let hidden = bad == f32::INFINITY || bad.is_nan();
                    assert_eq!(found, expected.filter(|_| !hidden));
                    let brains = values.iter().map(|&value| bf16::from_f32(value / 2.0));
                    let bytes: Vec<u8> = brains.flat_map(bf16::to_le_bytes).collect();
                    assert_eq!(first_not_finite(DType::BF16, &bytes), expected);
                }
            }
        }
        let finite = [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45];
        let finite = NamedTensor::from_f32("w", [6], finite.to_vec());
        assert_eq!(first_not_finite(DType::F32, &finite.bytes), None);
        assert_eq!(first_not_finite(DType::I64, &[0xff; 16]), None);
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_an_error_not_a_short_read() {
        let mut tensor = samples().remove(1);
        tensor.bytes.pop();
        assert!(tensor.to_f32().is_err());
    }
}
