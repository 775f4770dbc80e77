//! Tensors that go from rank to rank through the memory of their hosts, as the bytes of their elements.
use burn::prelude::*;
use pulp::bytemuck::{cast_slice, pod_collect_to_vec};
use spectrain_models::weights::host_f32;

use crate::error::{Error, Result};

/// A message of the elements of tensors, `[length]`.
pub(super) fn bytes(tensors: Vec<Tensor<1>>) -> Vec<u8> {
    let mut message = Vec::new();
    for tensor in tensors {
        message.extend_from_slice(cast_slice(&host_f32(tensor)));
    }
    message
}

/// The tensors of each rank's message, f32, of these lengths.
///
/// # Errors
/// A message is of another length.
pub(super) fn read(
    messages: Vec<Vec<u8>>,
    lengths: &[Vec<usize>],
    device: &Device,
) -> Result<Vec<Vec<Tensor<1>>>> {
    let all = messages.iter().zip(lengths).enumerate();
    all.map(|(from, (message, lengths))| tensors(from, message, lengths, device))
        .collect()
}

fn tensors(
    from: usize,
    message: &[u8],
    lengths: &[usize],
    device: &Device,
) -> Result<Vec<Tensor<1>>> {
    let expected = lengths.iter().sum::<usize>() * size_of::<f32>();
    if message.len() != expected {
        let found = message.len();
        let what = format!("sent {found} bytes of parameters in place of {expected}");
        return Err(Error::rank(from, &what));
    }
    let mut rest = message;
    let each = lengths.iter().map(|&length| {
        let (bytes, behind) = rest.split_at(length * size_of::<f32>());
        rest = behind;
        let values: Vec<f32> = pod_collect_to_vec(bytes);
        Tensor::from_data(TensorData::new(values, [length]), device)
    });
    Ok(each.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_read_as_they_were_written_and_not_when_cut_off() {
        let device = Device::flex();
        let values = [vec![1.0, -2.5], vec![], vec![0.1; 3]];
        let tensor = |values: &Vec<f32>| Tensor::<1>::from_floats(values.as_slice(), &device);
        let message = bytes(values.iter().map(tensor).collect());
        let lengths = values.clone().map(|of| of.len());
        let found = tensors(1, &message, &lengths, &device).unwrap();
        let found: Vec<Vec<f32>> = found.into_iter().map(host_f32).collect();
        assert_eq!(found, values);
        for length in (0..message.len()).chain([message.len() + 4]) {
            let mut other = message.clone();
            other.resize(length, 0);
            let error = tensors(3, &other, &lengths, &device)
                .unwrap_err()
                .to_string();
            assert!(error.contains("rank 3 sent"), "{error}");
            assert!(error.contains("in place of 20"), "{error}");
        }
    }
}
