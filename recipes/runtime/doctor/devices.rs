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
/// The variable that says which GPUs CUDA shows to a program.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The CPU, and every GPU that CUDA shows to this program.
pub(super) fn devices() -> Vec<Finding> {
    let here = (0..MOST).filter(|number| Path::new(&format!("/dev/nvidia{number}")).exists());
    let here = here.count();
    let shown = std::env::var_os(VISIBLE);
    let gpus = visible(
        here,
        shown.map(|shown| shown.to_string_lossy().into_owned()),
    );
    let mut found = vec![computes("cpu")];
    match check_built("cuda:0") {
        Ok(()) if gpus.is_empty() && here > 0 => found.push(
            Finding::good("cuda", format!("`{VISIBLE}` shows none of the GPUs that are here ({here})"))
                .note(format!("to train on a GPU, name it in `{VISIBLE}`, or unset it")),
        ),
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

/// The names of the GPUs that CUDA shows to a program, where there are so many and the variable is as given: it counts those that it
/// shows from 0, whatever they are called in `/dev`.
fn visible(here: usize, variable: Option<String>) -> Vec<String> {
    // The first entry that names nothing ends the list (<https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars>).
    let names_one = |entry: &&str| match entry.parse::<usize>() {
        Ok(number) => number < here,
        Err(_) => ["GPU-", "MIG-"]
            .iter()
            .any(|start| entry.starts_with(start)),
    };
    let count = variable.map_or(here, |variable| {
        let entries = variable.split(',').map(str::trim);
        entries.take_while(names_one).count().min(here)
    });
    (0..count).map(|number| format!("cuda:{number}")).collect()
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
    fn gpus_have_the_numbers_that_cuda_gives_those_it_shows() {
        let count = |variable: Option<&str>| visible(4, variable.map(str::to_owned)).len();
        assert_eq!(count(None), 4);
        for (variable, expected) in [
            ("", 0),
            ("-1", 0),
            ("NoDevFiles", 0),
            ("3", 1),
            ("2, 0", 2),
            ("1,4,2", 1),
            ("0,-1,1", 1),
            ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,1", 2),
            ("MIG-GPU-8932f937/1/2", 1),
            ("0,1,2,3,0", 4),
        ] {
            assert_eq!(count(Some(variable)), expected, "{variable}");
        }
        assert_eq!(visible(4, Some("3,1".into())), ["cuda:0", "cuda:1"]);
        assert!(visible(0, Some("0".into())).is_empty());
    }

    #[test]
    fn the_cpu_computes_and_a_device_that_cannot_be_opened_is_a_problem() {
        assert_eq!(computes("cpu").state, State::Good);
        let other = computes("abacus");
        assert_eq!(other.state, State::Problem);
        assert!(other.found.contains("unknown device `abacus`"), "{other:?}");
        assert!(expected().iter().any(|&value| value != 0.0));
    }
}
