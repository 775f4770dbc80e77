//! Numbers to bf16 and back, many at a time.
use burn::tensor::bf16;
use pulp::Arch;

use crate::vectorised;

/// As f32: every number of bf16 is one of it, with the same first bits.
pub fn widen(narrow: &[bf16], wide: &mut [f32]) {
    vectorised!(Arch::new(), {
        for (wide, narrow) in wide.iter_mut().zip(narrow) {
            *wide = f32::from_bits(u32::from(narrow.to_bits()) << 16);
        }
    });
}

/// To the nearest number of bf16, and of two that are as near to the even one.
pub fn round(wide: &[f32], narrow: &mut [bf16]) {
    vectorised!(Arch::new(), {
        for (narrow, wide) in narrow.iter_mut().zip(wide) {
            let bits = wide.to_bits();
            let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            // What is no number stays none.
            let bits = if wide.is_nan() {
                bits | 1 << 22
            } else {
                nearest
            };
            *narrow = bf16::from_bits((bits >> 16) as u16);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_type() {
        let ones = (0..1 << 16).map(|high: u32| high << 16);
        let lows = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        let wide: Vec<f32> = ones
            .flat_map(|high| lows.map(|low| f32::from_bits(high | low)))
            .collect();
        let mut narrow = vec![bf16::ZERO; wide.len()];
        round(&wide, &mut narrow);
        for (narrow, wide) in narrow.iter().zip(&wide) {
            let expected = bf16::from_f32(*wide);
            let alike = narrow.is_nan() && expected.is_nan();
            assert!(alike || narrow.to_bits() == expected.to_bits(), "{wide}");
        }
        let mut back = vec![0.0; narrow.len()];
        widen(&narrow, &mut back);
        for (back, narrow) in back.iter().zip(&narrow) {
            assert!(back.to_bits() == narrow.to_f32().to_bits() || back.is_nan());
        }
    }
}
