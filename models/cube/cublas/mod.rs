//! Products by cuBLASLt, CUDA's own library, where it is installed: on an H100 its kernels are three times as fast as cubek's.
//!
//! It works on a stream of its own ([`super::order`]); the host waits for neither.
#![expect(unsafe_code, reason = "cuBLASLt and CUDA's driver are C libraries")]
mod layout;
mod plan;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use burn_cubecl::tensor::CubeTensor;
use cubecl::RuntimeId;
use cubecl_common::device::{DeviceId, DeviceService, ServerUtilitiesHandle};
use cubecl_common::device_handle::DeviceHandle;
use cudarc::cublaslt::result::create_handle;
use cudarc::cublaslt::sys::{cublasLtHandle_t, is_culib_present};
use cudarc::driver::result::malloc_sync;

use super::by_cubek::Product;
use super::order::{Order, Server, addresses};
use layout::{Calls, Layout};
use plan::{Plan, WORKSPACE_BYTES};

/// With this many plans, as where texts grow token by token, they are made anew.
const MOST_PLANS: usize = 4096;

/// What addresses are multiples of, at most, as far as cuBLASLt asks.
const MOST_ALIGNED: u64 = 256;

/// Has `out` filled with `lhs · rhs` and returns `true`, unless the device is none of CUDA's, cuBLASLt is missing or a matrix runs
/// along neither side.
///
/// The host does not wait: the product has its place among what the device is given, as kernels have. A pass of an 8B target takes
/// some 300 of them, and hosts that wait for each one's launch have nothing in store when the device is done.
pub(super) fn multiply(lhs: &CubeTensor, rhs: &CubeTensor, out: &CubeTensor) -> bool {
    let Some((calls, there)) = ways(lhs, rhs, out) else {
        return false;
    };
    let (server, product) = (there.server, Product::new(lhs, rhs, out));
    there.multiplier.submit(move |multiplier| {
        let Err(why) = multiplier.multiply(&server, &product, &calls) else {
            return;
        };
        tracing::debug!("not by cuBLASLt: {:?}: {why}", calls.layout);
        if !product.by_fastest() {
            product.by_plainest();
        }
    });
    true
}

/// Has `lhs · rhs` added to `sum` and returns `true`, or leaves it as it is. The host waits until it is launched: no other kernel could
/// take its place where it is not.
pub(super) fn add(lhs: &CubeTensor, rhs: &CubeTensor, sum: &CubeTensor) -> bool {
    let Some((mut calls, there)) = ways(lhs, rhs, sum) else {
        return false;
    };
    calls.layout.adds = true;
    let (server, product) = (there.server, Product::new(lhs, rhs, sum));
    let launched = (there.multiplier)
        .submit_blocking(move |multiplier| multiplier.multiply(&server, &product, &calls));
    let launched = launched.map_err(|why| format!("{why:?}")).flatten();
    if let Err(why) = &launched {
        tracing::debug!("not added by cuBLASLt: {why}");
    }
    launched.is_ok()
}

/// The calls that a product takes, and where they are made; `None` where none are.
fn ways(lhs: &CubeTensor, rhs: &CubeTensor, out: &CubeTensor) -> Option<(Calls, There)> {
    if out.device.runtime() != RuntimeId::Cuda {
        return None;
    }
    let calls = Calls::of(lhs, rhs, out)?;
    Some((calls, There::on(out.client.service_id().device)?))
}

/// What is reached on the thread of a device.
#[derive(Clone)]
struct There {
    multiplier: DeviceHandle<Multiplier>,
    server: DeviceHandle<Server>,
}

impl There {
    /// `None` where cuBLASLt is missing; a warning has said so.
    fn on(device: DeviceId) -> Option<Self> {
        static ALL: Mutex<Option<HashMap<DeviceId, Option<There>>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        let found = all.entry(device).or_insert_with(|| {
            let multiplier = DeviceHandle::<Multiplier>::new(device);
            let opened = multiplier.utilities().downcast::<Opened>();
            let is_open = opened.is_ok_and(|opened| opened.0);
            is_open.then(|| Self {
                multiplier,
                server: DeviceHandle::new(device),
            })
        });
        found.clone()
    }
}

/// Whether a device has a library.
struct Opened(bool);

/// A service of CubeCL's beside its own, on the same thread: what one is given behind the other is done in that order.
struct Multiplier(Option<Library>);

impl DeviceService for Multiplier {
    fn init(_: DeviceId) -> Self {
        let opened = Library::open().inspect_err(|why| {
            tracing::warn!("matrix products will be slower: cuBLASLt: {why}");
        });
        Self(opened.ok())
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        Arc::new(Opened(self.0.is_some()))
    }
}

impl Multiplier {
    fn multiply(
        &mut self,
        server: &DeviceHandle<Server>,
        product: &Product,
        calls: &Calls,
    ) -> Result<(), String> {
        let library = self.0.as_mut().ok_or("it is missing")?;
        let held = addresses(server, product.operands())?;
        library.launch(&held.starts(), calls)
    }
}

/// cuBLASLt on one device, with a stream.
struct Library {
    library: cublasLtHandle_t,
    order: Order,
    /// Of [`WORKSPACE_BYTES`] on the device.
    workspace: u64,
    plans: HashMap<(Layout, [u32; 3]), Plan>,
}

// SAFETY: cuBLASLt, the driver and what they made may be called from any thread, by one at a time.
unsafe impl Send for Library {}

impl Library {
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
            // SAFETY: CubeCL holds memory of these shapes there until the caller's addresses are dropped, and gives none of it to anything that
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
