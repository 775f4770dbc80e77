//! Matrices that a folder holds in FP8 (E4M3) beside their scales, read as BF16.
//!
//! An element is its eight bits times the scale of its block, of its row or of the whole matrix, computed in 32 bits and rounded to
//! BF16, as DeepSeek's own conversion does. Engines also round to eight bits what such a matrix is multiplied with; here nothing is.

use std::collections::BTreeMap;

use half::bf16;
use serde_json::Value;

use super::parts::TensorInfo;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::mismatch::Mismatch;

/// What a configuration may say of quantised weights.
pub const READ: &str = "weights in FP8 (E4M3), or none that are quantised";

/// What is behind a matrix' name in that of its scales; `_scale_inv` too is what to multiply with.
const SCALES: [&str; 2] = ["_scale_inv", "_scale"];
/// Ends of names of what engines round other values with.
const OF_ACTIVATIONS: [&str; 4] = [".input_scale", ".activation_scale", ".k_scale", ".v_scale"];

/// Whether weights that are quantised as a configuration says can be read.
pub fn is_read(quantisation: &Value) -> bool {
    let word = |key: &str| quantisation[key].as_str().map(str::to_lowercase);
    match word("quant_method").as_deref() {
        Some("fp8") => word("fmt").is_none_or(|format| format == "e4m3"),
        Some("fbgemm_fp8") => true,
        Some("compressed-tensors") => word("format").as_deref() == Some("float-quantized"),
        Some("modelopt") => word("quant_algo").as_deref() == Some("fp8"),
        _ => false,
    }
}

/// The scales of a matrix `[.., rows, columns]`.
#[derive(Debug)]
pub(super) struct Scales {
    /// The tensor of them, `[.., rows of blocks, columns of blocks]` where there are several.
    pub(super) info: TensorInfo,
    /// Rows and columns of a block.
    block: [usize; 2],
}

/// Takes the scales from among the tensors, and gives them by the names of their matrices, which are BF16 from here on.
///
/// # Errors
/// Scales do not fit their matrix.
pub(super) fn take_scales(
    tensors: &mut BTreeMap<String, TensorInfo>,
    config: &Value,
) -> Result<BTreeMap<String, Scales>> {
    let usual = usual_block(&config["quantization_config"]);
    let mut found = BTreeMap::new();
    let in_eight_bits = tensors.values().filter(|info| info.dtype == DType::F8E4M3);
    let names: Vec<String> = in_eight_bits.map(|info| info.name.clone()).collect();
    for name in names {
        let of_scales = SCALES.map(|end| format!("{name}{end}"));
        let Some(info) = of_scales.iter().find_map(|scales| tensors.remove(scales)) else {
            continue; // A reader that knows no such type says so.
        };
        let Some(matrix) = tensors.get_mut(&name) else {
            continue;
        };
        let block = block(&matrix.shape, &info.shape, usual).ok_or_else(|| Error::Shape {
            name: info.name.clone(),
            path: info.file.clone(),
            mismatch: expected(&matrix.shape, &info.shape, usual),
        })?;
        matrix.dtype = DType::BF16;
        found.insert(name, Scales { info, block });
    }
    if !found.is_empty() {
        tensors.retain(|name, _| !OF_ACTIVATIONS.iter().any(|end| name.ends_with(end)));
    }
    Ok(found)
}

/// Rows and columns of the blocks that share a scale, as the libraries of FP8 checkpoints say it.
fn usual_block(quantisation: &Value) -> Option<[usize; 2]> {
    let groups = quantisation["config_groups"].as_object();
    let of_group = |group: &Value| group["weights"]["block_structure"].clone();
    let of_groups = groups
        .into_iter()
        .flat_map(|groups| groups.values().map(of_group));
    let mut said = std::iter::once(quantisation["weight_block_size"].clone()).chain(of_groups);
    let sizes = said.find_map(|said| serde_json::from_value::<[usize; 2]>(said).ok());
    sizes.filter(|sizes| sizes.iter().all(|&size| size > 0))
}

/// The block of scales of this shape beside a matrix; `None` where they do not fit it.
fn block(matrix: &[usize], scales: &[usize], usual: Option<[usize; 2]>) -> Option<[usize; 2]> {
    let [outer @ .., rows, columns] = matrix else {
        return None;
    };
    let is = |behind: &[usize]| scales == [outer, behind].concat();
    let in_blocks =
        usual.filter(|[high, wide]| is(&[rows.div_ceil(*high), columns.div_ceil(*wide)]));
    if in_blocks.is_some() {
        return in_blocks;
    }
    if is(&[*rows, 1]) || is(&[*rows]) {
        return Some([1, *columns]);
    }
    let of_all = outer.is_empty() && scales.iter().product::<usize>() == 1;
    (of_all || is(&[1, 1])).then_some([*rows, *columns])
}

fn expected(matrix: &[usize], scales: &[usize], usual: Option<[usize; 2]>) -> Mismatch {
    let blocks = usual.map_or(String::new(), |[high, wide]| {
        format!(", for each block of {high} × {wide},")
    });
    let expected = format!("a scale for the matrix {matrix:?}{blocks} or for each of its rows");
    Mismatch::new(expected, format!("scales of the shape {scales:?}"))
}

impl Scales {
    /// The matrix of this shape in BF16, from its eight bits and the values of the scales.
    pub(super) fn widened(&self, bytes: &[u8], shape: &[usize], scales: &[f32]) -> Vec<u8> {
        widened(bytes, shape, (scales, self.block))
    }
}

fn widened(bytes: &[u8], shape: &[usize], (scales, block): (&[f32], [usize; 2])) -> Vec<u8> {
    let [.., rows, columns] = *shape else {
        panic!("a matrix");
    };
    let mut widened = vec![0; 2 * bytes.len()];
    if bytes.is_empty() {
        return widened;
    }
    let [high, wide] = block;
    let across = columns.div_ceil(wide);
    let values: [f32; 256] = std::array::from_fn(|byte| value(byte as u8));
    let matrices = widened
        .chunks_mut(2 * rows * columns)
        .zip(bytes.chunks(rows * columns));
    let scales = scales.chunks(rows.div_ceil(high) * across);
    for ((to, from), scales) in matrices.zip(scales) {
        let blocks = to
            .chunks_mut(2 * high * columns)
            .zip(from.chunks(high * columns));
        for ((to, from), scales) in blocks.zip(scales.chunks(across)) {
            // What each of the 256 stands for in each block: a table is faster than to multiply and to round every element.
            let of_scale =
                |scale: &f32| values.map(|value| bf16::from_f32(value * scale).to_le_bytes());
            let tables: Vec<_> = scales.iter().map(of_scale).collect();
            for (to, from) in to.chunks_mut(2 * columns).zip(from.chunks(columns)) {
                for ((to, from), table) in
                    to.chunks_mut(2 * wide).zip(from.chunks(wide)).zip(&tables)
                {
                    for (to, &byte) in to.chunks_exact_mut(2).zip(from) {
                        to.copy_from_slice(&table[usize::from(byte)]);
                    }
                }
            }
        }
    }
    widened
}

/// A number in E4M3: a sign, four bits of an exponent with bias 7, three of a fraction; no infinity, one NaN of each sign.
fn value(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7) / 8.0);
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2f32.powi(-6),
        _ => (1.0 + fraction) * 2f32.powi(exponent - 7),
    };
    if byte >> 7 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_type() {
        let found = [0x00, 0x01, 0x07, 0x08, 0x38, 0x3c, 0x7e, 0xb8, 0xfe].map(value);
        let least = 2f32.powi(-9);
        let expected = [
            0.0,
            least,
            7.0 * least,
            8.0 * least,
            1.0,
            1.5,
            448.0,
            -1.0,
            -448.0,
        ];
        assert_eq!(found, expected);
        assert!(value(0x7f).is_nan() && value(0xff).is_nan());
    }

    #[test]
    fn matrices_side_by_side_have_scales_of_their_own() {
        let bytes: Vec<u8> = (0..2 * 3 * 4).map(|at| 0x30 + at).collect();
        let scales: Vec<f32> = (1..=8).map(|at| at as f32).collect();
        let usual = Some([2, 3]);
        let found = block(&[2, 3, 4], &[2, 2, 2], usual).unwrap();
        let all = widened(&bytes, &[2, 3, 4], (&scales, found));
        let one = |at: usize| {
            let (bytes, scales) = (&bytes[12 * at..][..12], &scales[4 * at..][..4]);
            widened(bytes, &[3, 4], (scales, [2, 3]))
        };
        assert_eq!(all, [one(0), one(1)].concat());
        // Row 2 and column 3 of the second matrix have the last scale.
        let last = bf16::from_le_bytes([all[46], all[47]]).to_f32();
        assert_eq!(last, value(0x30 + 23) * 8.0);
    }

    #[test]
    fn scales_are_of_blocks_of_rows_or_of_all() {
        let of = |scales: &[usize], usual| block(&[40, 24], scales, usual);
        assert_eq!(of(&[3, 3], Some([16, 9])), Some([16, 9]));
        assert_eq!(of(&[3, 3], None), None);
        assert_eq!(of(&[3, 2], Some([16, 9])), None);
        for rows in [&[40, 1][..], &[40]] {
            assert_eq!(of(rows, None), Some([1, 24]));
        }
        for all in [&[][..], &[1], &[1, 1]] {
            assert_eq!(of(all, Some([16, 9])), Some([40, 24]));
        }
        assert_eq!(block(&[40], &[], None), None);
    }
}
