//! The devices: which there are, and whether they compute what they should.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use burn::prelude::*;
use spectrain_models::weights::host_f32;

use super::finding::Finding;
use crate::runtime::device::{check_built, device};

/// Rows, inner width and columns of the product that is compared.
const PRODUCT: [usize; 3] = [48, 160, 96];
/// Numbers that the factors are made of, all of which every device represents exactly, as it does the product's.
const NUMBERS: usize = 7;
/// GPUs of a machine that are looked for.
const MOST: usize = 64;

/// The CPU, and every GPU that is here.
pub(super) fn devices() -> Vec<Finding> {
    let gpus = (0..MOST).filter(|number| Path::new(&format!("/dev/nvidia{number}")).exists());
    let gpus: Vec<String> = gpus.map(|number| format!("cuda:{number}")).collect();
    let mut found = vec![computes("cpu")];
    match check_built("cuda:0") {
        Ok(()) if gpus.is_empty() => found.push(Finding::good("cuda", "no GPU is here").note(
            "with a GPU, check that its driver is installed and that this program may see it (`nvidia-smi -L`)",
        )),
        Ok(()) => found.extend(gpus.iter().map(|name| computes(name))),
        Err(_) if gpus.is_empty() => {}
        Err(error) => found.push(
            Finding::good("cuda", format!("{} here, unused", gpus.join(", "))).note(error.to_string()),
        ),
    }
    found
}

/// Whether a device computes a product as integers say that it is.
fn computes(name: &str) -> Finding {
    let finding = Finding::good(name, "a matrix product on it is right");
    // A driver that is missing or does not fit is a panic in the depths of the runtime.
    let product = catch_unwind(AssertUnwindSafe(|| anyhow::Ok(product(&device(name)?))));
    let found = match product {
        Ok(Ok(product)) if product == expected() => return finding,
        Ok(Ok(_)) => "a matrix product on it is wrong".to_owned(),
        Ok(Err(error)) => format!("it cannot be opened: {error:#}"),
        Err(_) => "it cannot be opened".to_owned(),
    };
    Finding { found, ..finding }.problem(
        "do not rely on it; check its driver (`nvidia-smi`), and that the driver is as new as the CUDA this program was built with",
    )
}

/// The entry of a factor.
fn entry(row: usize, column: usize) -> f32 {
    ((row * 5 + column * 3) % NUMBERS) as f32 - 3.0
}

fn product(device: &Device) -> Vec<f32> {
    let [rows, inner, columns] = PRODUCT;
    let factor = |rows: usize, columns: usize| {
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let entries: Vec<f32> = places.map(|(row, column)| entry(row, column)).collect();
        Tensor::<2>::from_data(TensorData::new(entries, [rows, columns]), device)
    };
    host_f32(factor(rows, inner).matmul(factor(inner, columns)))
}

fn expected() -> Vec<f32> {
    let [rows, inner, columns] = PRODUCT;
    let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let sum = |(row, column)| {
        (0..inner)
            .map(|at| entry(row, at) * entry(at, column))
            .sum()
    };
    places.map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn the_cpu_computes_and_a_device_that_cannot_be_opened_is_a_problem() {
        assert_eq!(computes("cpu").state, State::Good);
        let other = computes("abacus");
        assert_eq!(other.state, State::Problem);
        assert!(other.found.contains("unknown device `abacus`"), "{other:?}");
        assert!(expected().iter().any(|&value| value != 0.0));
    }
}
