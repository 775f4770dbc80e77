//! How a divergence is read: by its name, or as a table of its name and its parameter, which `lk_hybrid` may have or not.
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, EnumAccess, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::divergence::Divergence;

/// The names as they are written.
#[derive(Deserialize)]
#[serde(variant_identifier, rename_all = "snake_case")]
enum Name {
    Kl,
    SoftCe,
    ReverseKl,
    Jsd,
    Ce,
    TemperedKl,
    Tv,
    TvPlusPlus,
    Nla,
    LkHybrid,
    TopK,
    Sum,
}

impl<'de> Deserialize<'de> for Divergence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An unknown name is told with all of them by whoever reads names.
        deserializer.deserialize_enum("Divergence", &[], OneOfThem)
    }
}

struct OneOfThem;

impl<'de> Visitor<'de> for OneOfThem {
    type Value = Divergence;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a divergence")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Divergence, A::Error> {
        let (name, parameter) = access.variant::<Name>()?;
        let named = match name {
            Name::Jsd => return parameter.newtype_variant().map(Divergence::Jsd),
            Name::TemperedKl => return parameter.newtype_variant().map(Divergence::TemperedKl),
            Name::TopK => return parameter.newtype_variant().map(Divergence::TopK),
            Name::Sum => return parameter.newtype_variant().map(Divergence::Sum),
            Name::LkHybrid => return lk_hybrid(parameter),
            Name::Kl => Divergence::Kl,
            Name::SoftCe => Divergence::SoftCe,
            Name::ReverseKl => Divergence::ReverseKl,
            Name::Ce => Divergence::Ce,
            Name::Tv => Divergence::Tv,
            Name::TvPlusPlus => Divergence::TvPlusPlus,
            Name::Nla => Divergence::Nla,
        };
        parameter.unit_variant().map(|()| named)
    }
}

/// With its decay where there is one: where the name stands alone, nobody asks for a number behind it.
fn lk_hybrid<'de, V: VariantAccess<'de>>(parameter: V) -> Result<Divergence, V::Error> {
    let is_there = Cell::new(false);
    match parameter.newtype_variant_seed(Decay(&is_there)) {
        Err(_) if !is_there.get() => Ok(Divergence::LkHybrid),
        decay => decay.map(Divergence::LkHybridOf),
    }
}

/// A decay, and where to note that there is one.
struct Decay<'a>(&'a Cell<bool>);

impl<'de> DeserializeSeed<'de> for Decay<'_> {
    type Value = f64;

    fn deserialize<D: Deserializer<'de>>(self, number: D) -> Result<f64, D::Error> {
        self.0.set(true);
        f64::deserialize(number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::weight::Weight;

    #[test]
    fn every_divergence_is_read_as_it_is_written() {
        let schema = schemars::schema_for!(Divergence).to_value();
        let mut names = Vec::new();
        for choice in schema["oneOf"].as_array().unwrap() {
            let written = match (choice["const"].as_str(), choice["required"][0].as_str()) {
                (Some(name), _) => json!(name),
                (None, Some("sum")) => json!({ "sum": { "kl": 0.5 } }),
                (None, Some("top_k")) => json!({ "top_k": 3 }),
                (None, name) => json!({ (name.unwrap()): 0.5 }),
            };
            let read: Divergence = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), written);
            assert_eq!(read.problem(), None, "{written}");
            names.push(written);
        }
        for form in [json!("lk_hybrid"), json!({ "lk_hybrid": 0.5 })] {
            assert!(names.contains(&form), "{names:?}");
        }
    }

    #[test]
    fn lk_hybrid_has_a_decay_or_none() {
        let read = |written: Value| serde_json::from_value::<Divergence>(written);
        let alone = read(json!("lk_hybrid")).unwrap();
        assert_eq!(alone, Divergence::LkHybrid);
        let decaying = read(json!({ "lk_hybrid": 1 })).unwrap();
        assert_eq!(decaying, Divergence::LkHybridOf(1.0));
        for (wrong, told) in [
            (json!({ "lk_hybrid": "fast" }), "expected f64"),
            (json!("jsd"), "expected newtype variant"),
            (json!({ "kl": 1 }), "expected unit"),
            (json!("lk"), "unknown variant `lk`, expected one of `kl`"),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        for decay in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let (expected, _) = Divergence::LkHybridOf(decay).problem().unwrap();
            assert!(expected.contains("above 0"), "{decay}");
        }
    }

    #[test]
    fn factors_of_a_sum_may_change() {
        let read = |factors: Value| {
            let sum = json!({ "sum": factors });
            serde_json::from_value::<Divergence>(sum).unwrap()
        };
        let rising = json!({ "start": 0.0, "end": 0.5, "from": 0.5, "until": 1.0 });
        let changing = read(json!({ "kl": 1, "jsd": rising }));
        assert_eq!(changing.problem(), None);
        let Divergence::Sum(factors) = &changing else {
            panic!("{changing:?}");
        };
        assert_eq!(factors.kl, Weight::Fixed(1.0));
        assert_eq!(changing.changing(None), [("jsd", 0.5)]);
        // At none of the steps 0, and alone at one.
        let falling = json!({ "start": 1, "end": 0, "from": 0, "until": 0.75 });
        assert_eq!(
            read(json!({ "tv": falling, "jsd": rising })).problem(),
            None
        );
        let falling = json!({ "start": 1, "end": 0, "from": 0, "until": 0.5 });
        for factors in [
            json!({ "tv": falling, "jsd": rising }),
            json!({ "jsd": rising }),
            json!({ "kl": 1, "jsd": { "start": -1, "end": 1 } }),
            json!({}),
        ] {
            let (expected, _) = read(factors).problem().unwrap();
            assert!(expected.contains("above 0 at each step"), "{expected}");
        }
        let both = read(json!({ "tv": falling, "jsd": rising }));
        let (expected, _) = both.problem().unwrap();
        let when = "one of them above 0 at each step (all are 0 after the share 0.5 of the steps)";
        assert!(expected.ends_with(when), "{expected}");
        let from = |from: f64| {
            let tv = json!({ "start": 0, "end": 1, "from": from, "until": 0.5 });
            read(json!({ "kl": 1, "tv": tv })).problem()
        };
        let (expected, _) = from(0.6).unwrap();
        let told = "`from` of each factor at most its `until`";
        assert!(expected.contains(told), "{expected}");
        assert_eq!(from(0.5), None);
    }
}
