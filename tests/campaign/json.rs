//! Changes to JSON that leave it JSON.
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use super::bytes::{change_text, odd};

/// A value that no key should have.
fn hostile(rng: &mut StdRng) -> Value {
    let values = [
        json!(null),
        json!(-1),
        json!(0),
        json!(1),
        json!(1023),
        json!(i32::MAX),
        json!(1u64 << 60),
        json!(u64::MAX),
        json!(1e300),
        json!(-0.5),
        json!(""),
        json!(odd(rng)),
        json!(odd(rng).repeat(400)),
        json!([]),
        json!([0, 1]),
        json!([-1, 1u64 << 40]),
        json!(vec![0; 3000]),
        json!([[[[[[]]]]]]),
        json!({}),
        json!({"a": {"a": {"a": null}}}),
        json!(true),
        json!(false),
    ];
    values.choose(rng).unwrap().clone()
}

/// Changes something at a random place of a value.
pub fn change(value: &mut Value, rng: &mut StdRng) {
    let deeper = rng.random_bool(0.7);
    match value {
        Value::Object(table) if !table.is_empty() && deeper => {
            let keys: Vec<String> = table.keys().cloned().collect();
            let key = keys.choose(rng).unwrap().clone();
            match rng.random_range(0..10) {
                0 => drop(table.remove(&key)),
                1 => {
                    let moved = table.remove(&key).unwrap_or_default();
                    table.insert(odd(rng).into(), moved);
                }
                2 => {
                    let other = table[keys.choose(rng).unwrap()].clone();
                    table[&key] = other;
                }
                _ => change(&mut table[&key], rng),
            }
        }
        Value::Array(values) if !values.is_empty() && deeper => {
            let at = rng.random_range(0..values.len());
            match rng.random_range(0..10) {
                0 => drop(values.remove(at)),
                1 => values.push(values[at].clone()),
                2 => values.swap(at, 0),
                3 => {
                    let again = values[at].clone();
                    values.extend(std::iter::repeat_n(again, 300));
                }
                _ => change(&mut values[at], rng),
            }
        }
        Value::Number(number) if rng.random_bool(0.5) => {
            let near = number.as_f64().unwrap_or(0.0) + f64::from(rng.random_range(-2..3));
            *value = if near.fract() == 0.0 && near.abs() < 1e15 {
                json!(near as i64)
            } else {
                json!(near)
            };
        }
        Value::String(text) if rng.random_bool(0.5) => {
            let mut bytes = std::mem::take(text).into_bytes();
            change_text(&mut bytes, rng);
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        other => *other = hostile(rng),
    }
}

/// Changes bytes that are JSON, most often to other JSON.
pub fn change_bytes(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let parsed = serde_json::from_slice::<Value>(bytes).ok();
    match parsed.filter(|_| rng.random_bool(0.8)) {
        Some(mut value) => {
            for _ in 0..rng.random_range(1..4) {
                change(&mut value, rng);
            }
            *bytes = value.to_string().into_bytes();
        }
        None => change_text(bytes, rng),
    }
}

/// The same to one of several lines.
pub fn change_line(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let mut lines: Vec<Vec<u8>> = bytes
        .split(|&byte| byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    let at = rng.random_range(0..lines.len());
    match rng.random_range(0..12) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[at].clone()),
        2 => lines.swap(at, 0),
        _ => change_bytes(&mut lines[at], rng),
    }
    *bytes = lines.join(&b'\n');
}
