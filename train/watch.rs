use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Steps before the running mean of the loss is trusted. Until then a loss is held against the first one, where that is above 1: one
/// near 0 grows by much at the first steps of a drafter that was good already.
const SETTLED: usize = 20;
/// Weight of the newest loss in the running mean.
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
    mean: f64,
    #[serde(default)]
    first: f64,
    seen: usize,
    #[serde(skip)]
    memory: Vec<u64>,
}

impl Watch {
    /// What is wrong with a step's loss and gradient norm, if anything.
    pub(crate) fn see(&mut self, loss: f64, norm: f64, explosion: f64) -> Option<String> {
        if !loss.is_finite() {
            return Some(format!("the loss is {loss}"));
        }
        if !norm.is_finite() {
            return Some(format!("the gradient norm is {norm}"));
        }
        if self.seen >= SETTLED && loss > explosion * self.mean.max(f64::MIN_POSITIVE) {
            let mean = self.mean;
            return Some(format!(
                "the loss is {loss:.4}, more than {explosion} times its running mean {mean:.4}"
            ));
        }
        // A state of an earlier version has none.
        if self.first == 0.0 {
            self.first = loss;
        }
        if self.seen < SETTLED && loss > explosion * self.first.max(1.0) {
            let than = match self.first {
                first if first < 1.0 => format!("{explosion}, where the first one was {first:.4}"),
                first => format!("{explosion} times the first one, {first:.4}"),
            };
            return Some(format!("the loss is {loss:.4}, more than {than}"));
        }
        self.mean = match self.seen {
            0 => loss,
            _ => self.mean + NEWEST * (loss - self.mean),
        };
        self.seen += 1;
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

    #[test]
    fn a_loss_that_explodes_at_once_is_told_and_a_small_one_may_grow() {
        let mut watch = Watch::default();
        assert_eq!(watch.see(12.0, 1.0, 10.0), None);
        assert_eq!(watch.see(100.0, 1.0, 10.0), None);
        let told = watch.see(130.0, 1.0, 10.0).unwrap();
        assert!(told.contains("the first one, 12.0000"), "{told}");
        let mut watch = Watch::default();
        assert_eq!(watch.see(0.1, 1.0, 10.0), None);
        assert_eq!(watch.see(9.0, 1.0, 10.0), None);
    }

    #[test]
    fn an_exploding_or_undefined_loss_is_told() {
        let mut watch = Watch::default();
        for _ in 0..SETTLED {
            assert_eq!(watch.see(2.0, 1.0, 10.0), None);
        }
        assert_eq!(watch.see(19.0, 1.0, 10.0), None);
        assert!(watch.see(60.0, 1.0, 10.0).is_some());
        assert!(watch.see(f64::NAN, 1.0, 10.0).is_some());
        assert!(watch.see(2.0, f64::INFINITY, 10.0).is_some());
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
