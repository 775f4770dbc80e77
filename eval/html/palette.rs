//! How many things one chart tells apart; `style.css` has a colour for each.

/// Colours and markers.
pub(crate) const MOST: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const STYLE: &str = include_str!("style.css");

    /// The colours by name, of the light and of the dark scheme.
    fn schemes() -> Vec<BTreeMap<&'static str, [f64; 3]>> {
        let blocks = STYLE.split(":root {").skip(1);
        let colour = |line: &'static str| {
            let (name, value) = line.trim().strip_prefix("--")?.split_once(": #")?;
            let value = u32::from_str_radix(value.trim_end_matches(';'), 16).unwrap();
            let part = |shift: u32| f64::from(value >> shift & 0xff) / 255.0;
            Some((name, [part(16), part(8), part(0)]))
        };
        let scheme = |block: &'static str| {
            block
                .split('}')
                .next()
                .unwrap()
                .lines()
                .filter_map(colour)
                .collect()
        };
        blocks.map(scheme).collect()
    }

    /// Relative luminance as WCAG 2.2 has it.
    fn luminance(colour: [f64; 3]) -> f64 {
        let [r, g, b] = colour.map(|part| {
            if part <= 0.04045 {
                part / 12.92
            } else {
                ((part + 0.055) / 1.055).powf(2.4)
            }
        });
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn words_and_marks_stand_out_in_both_schemes() {
        let schemes = schemes();
        assert_eq!(schemes.len(), 2);
        for (at, scheme) in schemes.iter().enumerate() {
            for ground in ["ground", "raised"] {
                for words in ["words", "quiet", "link", "good", "bad", "unsure"] {
                    let found = contrast(scheme[words], scheme[ground]);
                    assert!(found >= 4.5, "{words} on {ground} of {at}: {found:.2}");
                }
                for colour in 1..=MOST {
                    let name = format!("c{colour}");
                    let found = contrast(scheme[&*name], scheme[ground]);
                    assert!(found >= 3.0, "{name} on {ground} of {at}: {found:.2}");
                }
            }
        }
    }
}
