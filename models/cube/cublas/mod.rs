//! Products by cuBLASLt, CUDA's own library, where it is installed: on an H100 its kernels are three times as fast as cubek's.
//!
//! It works on a stream of its own ([`super::order`]); the host waits for neither.
#![expect(unsafe_code, reason = "cuBLASLt and CUDA's driver are C libraries")]
mod layout;
mod plan;

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use burn_cubecl::tensor::CubeTensor;
use cubecl::RuntimeId;
use cudarc::cublaslt::result::create_handle;
use cudarc::cublaslt::sys::{cublasLtHandle_t, is_culib_present};
use cudarc::driver::result::malloc_sync;

use super::order::{Order, with_addresses};
use layout::{Calls, Layout};
use plan::{Plan, WORKSPACE_BYTES};

/// With this many plans, as where texts grow token by token, they are made anew.
const MOST_PLANS: usize = 4096;

/// What addresses are multiples of, at most, as far as cuBLASLt asks.
const MOST_ALIGNED: u64 = 256;

thread_local! {
    /// What the thread of a device multiplies with: CubeCL gives each device one.
    static MULTIPLIER: RefCell<Option<Result<Multiplier, String>>> = const { RefCell::new(None) };
}

/// Fills `out` with `lhs · rhs` and returns `true`, unless the device is none of CUDA's, or cuBLASLt is missing or has no kernel.
pub(super) fn multiply(lhs: &CubeTensor, rhs: &CubeTensor, out: &CubeTensor) -> bool {
    if out.device.runtime() != RuntimeId::Cuda {
        return false;
    }
    let Some(calls) = Calls::of(lhs, rhs, out) else {
        return false;
    };
    let tensors = [lhs, rhs, out];
    let on_device = || {
        MULTIPLIER.with_borrow_mut(|found| {
            let multiplier = found.get_or_insert_with(|| {
                Multiplier::open().inspect_err(|why| {
                    tracing::warn!("matrix products will be slower: cuBLASLt: {why}");
                })
            });
            let multiplier = multiplier.as_mut().map_err(|why| why.clone())?;
            multiplier.multiply(tensors, &calls)
        })
    };
    let reached = out.client.exclusive(on_device);
    let done = reached.unwrap_or_else(|why| Err(format!("{why:?}")));
    done.inspect_err(|why| tracing::debug!("not by cuBLASLt: {:?}: {why}", calls.layout))
        .is_ok()
}

/// cuBLASLt on one device, with a stream.
struct Multiplier {
    library: cublasLtHandle_t,
    order: Order,
    /// Of [`WORKSPACE_BYTES`] on the device.
    workspace: u64,
    plans: HashMap<(Layout, [u32; 3]), Plan>,
}

impl Multiplier {
    /// On the device whose context is current.
    fn open() -> Result<Self, String> {
        // SAFETY: it opens the library and closes it again.
        if !unsafe { is_culib_present() } {
            return Err(
                "libcublasLt was not found; CUDA's toolkit has it, and PyPI's nvidia-cublas".into(),
            );
        }
        let library = create_handle().map_err(|why| why.to_string())?;
        let order = Order::open()?;
        // SAFETY: a context is current; the memory is kept for as long as the process lives.
        let workspace = unsafe { malloc_sync(WORKSPACE_BYTES) }.map_err(|why| why.to_string())?;
        Ok(Self {
            library,
            order,
            workspace,
            plans: HashMap::new(),
        })
    }

    fn multiply(&mut self, tensors: [&CubeTensor; 3], calls: &Calls) -> Result<(), String> {
        with_addresses(&tensors, |starts| self.launch(starts, calls))
    }

    /// The operands start at these addresses, in memory that is theirs until this has been launched.
    fn launch(&mut self, starts: &[u64], calls: &Calls) -> Result<(), String> {
        let Layout {
            dtype, out_dtype, ..
        } = calls.layout;
        let elements = [dtype, dtype, out_dtype].map(|of| of.size() as u64);
        if self.plans.len() >= MOST_PLANS {
            self.plans.clear();
        }
        self.order.begin()?;
        let launched = calls.starts.iter().try_for_each(|behind| {
            let place = [0, 1, 2].map(|at| starts[at] + elements[at] * behind[at] as u64);
            let plan = match self.plans.entry((calls.layout.clone(), alignments(&place))) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(free) => {
                    let (layout, alignments) = free.key();
                    let made = Plan::make(self.library, layout, *alignments)?;
                    free.insert(made)
                }
            };
            // SAFETY: CubeCL holds memory of these shapes there until `with_addresses` is over, and gives none of it to anything that
            // the device does before the stream has ended; products use the workspace one after the other, on one stream.
            unsafe { plan.launch(self.library, place, self.workspace, self.order.stream()) }
        });
        self.order.end()?;
        launched.map_err(|why| why.to_string())
    }
}

fn alignments(addresses: &[u64; 3]) -> [u32; 3] {
    addresses.map(|address| (1u64 << address.trailing_zeros().min(63)).min(MOST_ALIGNED) as u32)
}
