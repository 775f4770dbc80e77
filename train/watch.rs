use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Steps before the running mean of the distance is trusted. Until then a distance is held against the first one.
const SETTLED: usize = 20;
/// The least that a distance is held against: one near 0, of a drafter that is good already, grows by much where nothing is wrong.
const LEAST: f64 = 1.0;
/// Weight of the newest distance in the running mean.
const NEWEST: f64 = 0.05;
/// Log intervals in a row over which memory must grow to count as a leak, and the share by which it must.
const INTERVALS: usize = 20;
const GROWTH: f64 = 0.25;

/// Memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that tensors take.
    pub in_use: u64,
    /// Bytes that are held for them, whether they are in use or not.
    pub reserved: u64,
}

/// Looks out for losses, gradients and memory that go wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Watch {
    /// The running mean; 0 in a state of an earlier version, as the two below it.
    #[serde(default)]
    mean_distance: f64,
    #[serde(default)]
    first_distance: f64,
    /// Distances seen.
    #[serde(default)]
    distances: usize,
    #[serde(skip)]
    memory: Vec<u64>,
}

impl Watch {
    /// What is wrong with a step's loss, with the distance at a judged position behind it, and with the gradient norm, if anything.
    pub(crate) fn see(
        &mut self,
        (loss, distance): (f64, f64),
        norm: f64,
        explosion: f64,
    ) -> Option<String> {
        if let Some(undefined) = [loss, distance].iter().find(|x| !x.is_finite()) {
            return Some(format!("the loss is {undefined}"));
        }
        if !norm.is_finite() {
            return Some(format!("the gradient norm is {norm}"));
        }
        if self.distances == 0 {
            self.first_distance = distance;
        }
        let (usual, name) = match self.distances >= SETTLED {
            true => (self.mean_distance, "its running mean"),
            false => (self.first_distance, "the first one"),
        };
        if distance > explosion * usual.max(LEAST) {
            let than = match usual >= LEAST {
                true => format!("{explosion} times {name}, {usual:.4}"),
                false => format!("{explosion}, where {name} is {usual:.4}"),
            };
            return Some(format!(
                "the loss at a judged position is {distance:.4}, more than {than}"
            ));
        }
        self.mean_distance = match self.distances {
            0 => distance,
            _ => self.mean_distance + NEWEST * (distance - self.mean_distance),
        };
        self.distances += 1;
        None
    }

    /// Fails when device memory has grown at every one of the last intervals, and by much.
    pub(crate) fn memory(&mut self, found: Option<DeviceMemory>, step: usize) -> Result<()> {
        // What is reserved grows in large pieces, which a leak does not fill in each interval.
        let Some(DeviceMemory { in_use: bytes, .. }) = found else {
            return Ok(());
        };
        if self.memory.last().is_some_and(|&last| bytes <= last) {
            self.memory.clear();
        }
        self.memory.push(bytes);
        let first = self.memory[0];
        let grown = bytes as f64 > first as f64 * (1.0 + GROWTH);
        if self.memory.len() > INTERVALS && grown {
            return Err(Error::MemoryGrowth {
                step,
                from_mib: first >> 20,
                to_mib: bytes >> 20,
                intervals: self.memory.len() - 1,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(watch: &mut Watch, distance: f64) -> Option<String> {
        watch.see((distance, distance), 1.0, 10.0)
    }

    fn settled(distance: f64) -> Watch {
        let mut watch = Watch::default();
        for _ in 0..SETTLED {
            assert_eq!(see(&mut watch, distance), None);
        }
        watch
    }

    #[test]
    fn a_loss_that_explodes_at_once_is_told_and_a_small_one_may_grow() {
        let mut watch = Watch::default();
        assert_eq!(see(&mut watch, 12.0), None);
        assert_eq!(see(&mut watch, 100.0), None);
        let told = see(&mut watch, 130.0).unwrap();
        assert!(told.contains("the first one, 12.0000"), "{told}");
        let mut watch = Watch::default();
        assert_eq!(see(&mut watch, 0.1), None);
        assert_eq!(see(&mut watch, 9.0), None);
        let told = see(&mut watch, 10.5).unwrap();
        let expected = "10, where the first one is 0.1000";
        assert!(told.ends_with(expected), "{told}");
    }

    #[test]
    fn a_small_loss_may_grow_later_too() {
        let mut watch = settled(0.001);
        assert_eq!(see(&mut watch, 0.011), None);
        assert_eq!(see(&mut watch, 9.0), None);
        let told = see(&mut settled(0.001), 10.5).unwrap();
        let expected = "10, where its running mean is 0.0010";
        assert!(told.ends_with(expected), "{told}");
    }

    #[test]
    fn losses_in_a_state_of_an_earlier_version_are_no_distances() {
        let state = r#"{"mean": 0.02, "first": 0.05, "seen": 500}"#;
        let mut watch: Watch = serde_json::from_str(state).unwrap();
        assert_eq!(see(&mut watch, 40.0), None);
        assert_eq!(see(&mut watch, 50.0), None);
        let state = serde_json::to_string(&settled(2.0)).unwrap();
        let mut watch: Watch = serde_json::from_str(&state).unwrap();
        assert_eq!(watch, settled(2.0));
        assert!(see(&mut watch, 60.0).is_some());
    }

    #[test]
    fn an_exploding_or_undefined_loss_is_told() {
        let mut watch = settled(2.0);
        assert_eq!(see(&mut watch, 19.0), None);
        assert!(see(&mut watch, 60.0).is_some());
        assert!(see(&mut watch, f64::NAN).is_some());
        assert!(watch.see((f64::NAN, 2.0), 1.0, 10.0).is_some());
        assert!(watch.see((2.0, 2.0), f64::INFINITY, 10.0).is_some());
    }

    #[test]
    fn only_steady_growth_is_a_leak() {
        let found = |in_use| {
            Some(DeviceMemory {
                in_use,
                reserved: 2000,
            })
        };
        let mut watch = Watch::default();
        for step in 0..100 {
            let wobble = 1000 + (step % 7) as u64 * 100;
            watch.memory(found(wobble), step).unwrap();
        }
        let mut watch = Watch::default();
        let leak = (0..=INTERVALS).map(|i| watch.memory(found(1000 + 20 * i as u64), i));
        assert!(leak.last().unwrap().is_err());
    }
}
