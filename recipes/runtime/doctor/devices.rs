//! The devices: which there are, and whether they compute what they should.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use burn::prelude::*;
use spectrain_models::device::cuda_devices;
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
    let mut found = vec![computes("cpu")];
    match (check_built("cuda:0"), cuda_devices()) {
        (Ok(()), 0) => found.push(none_shown(here, std::env::var_os(VISIBLE).is_some())),
        (Ok(()), shown) => {
            found.extend((0..shown).map(|number| computes(&format!("cuda:{number}"))));
        }
        (Err(_), _) if here == 0 => {}
        (Err(error), _) => {
            let noun = if here == 1 { "GPU" } else { "GPUs" };
            let unused = Finding::good("cuda", format!("{here} {noun} here, unused"));
            found.push(unused.note(error.to_string()));
        }
    }
    found
}

/// What is said where the driver shows no GPU to this program, although so many have a file in `/dev`. Which those are says nothing
/// of what the driver shows, and not all systems have such files.
fn none_shown(here: usize, variable_is_set: bool) -> Finding {
    match (here, variable_is_set) {
        (0, false) => Finding::good("cuda", "no GPU is here").note(
            "with a GPU, check that its driver is installed and that this program may see it (`nvidia-smi -L`)",
        ),
        (0, true) => Finding::good("cuda", format!("no GPU is here, or `{VISIBLE}` shows none"))
            .note(format!(
                "with a GPU, name it in `{VISIBLE}`, or unset it, and check that its driver is installed (`nvidia-smi -L`)"
            )),
        (_, true) => Finding::good(
            "cuda",
            format!("`{VISIBLE}` shows none of the GPUs that are here ({here})"),
        )
        .note(format!("to train on a GPU, name it in `{VISIBLE}`, or unset it")),
        (_, false) => Finding::good(
            "cuda",
            format!("the driver shows none of the GPUs that are here ({here})"),
        )
        .problem("check the driver (`nvidia-smi`), and that it is as new as the CUDA this program was built with"),
    }
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
    fn where_the_driver_shows_no_gpu_it_is_said_what_may_hide_it() {
        let said = |here: usize, variable_is_set: bool| {
            let finding = none_shown(here, variable_is_set);
            (finding.state, finding.found)
        };
        let (state, found) = said(0, false);
        assert_eq!((state, &*found), (State::Note, "no GPU is here"));
        let (state, found) = said(2, false);
        assert_eq!(state, State::Problem);
        assert!(
            found.contains("the driver") && found.contains("(2)"),
            "{found}"
        );
        for here in [0, 2] {
            let (state, found) = said(here, true);
            assert_eq!(state, State::Note);
            assert!(found.contains(VISIBLE), "{found}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn without_the_feature_no_gpu_is_shown_and_none_is_tried() {
        assert_eq!(cuda_devices(), 0);
        let tried = |finding: &Finding| finding.name.starts_with("cuda:");
        assert!(!devices().iter().any(tried));
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
