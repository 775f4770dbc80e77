//! Products by cuBLASLt, CUDA's own library, where it is installed: on an H100 its kernels are three times as fast as cubek's.
//!
//! CubeCL launches kernels on streams that it shows to nobody. So cuBLASLt works on a stream of its own, which waits for all that
//! the device has been given before, and for which all that comes later waits; the host waits for neither.
#![expect(unsafe_code, reason = "cuBLASLt and CUDA's driver are C libraries")]
mod layout;
mod plan;

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use burn_cubecl::tensor::CubeTensor;
use cubecl::RuntimeId;
use cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use cudarc::cublaslt::result::create_handle;
use cudarc::cublaslt::sys::{cublasLtHandle_t, is_culib_present};
use cudarc::driver::result::{ctx, event, malloc_sync, stream};
use cudarc::driver::sys::{
    CUcontext, CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream,
};

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
        // They keep the memory until the kernels are on their way.
        let held = tensors.map(|of| {
            let handle = of.handle.clone();
            of.client
                .get_resource::<<CudaRuntime as Runtime>::Server>(handle)
        });
        let mut starts = [0; 3];
        for (start, held) in starts.iter_mut().zip(&held) {
            let held = held.as_ref().map_err(|why| format!("{why:?}"))?;
            *start = held.resource().ptr;
        }
        let element = calls.layout.dtype.size() as u64;
        if self.plans.len() >= MOST_PLANS {
            self.plans.clear();
        }
        self.order.begin()?;
        let launched = calls.starts.iter().try_for_each(|behind| {
            let place = [0, 1, 2].map(|at| starts[at] + element * behind[at] as u64);
            let plan = match self.plans.entry((calls.layout.clone(), alignments(&place))) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(free) => {
                    let (layout, alignments) = free.key();
                    let made = Plan::make(self.library, layout, *alignments)?;
                    free.insert(made)
                }
            };
            // SAFETY: CubeCL holds memory of these shapes there until `held` is dropped, and gives none of it to anything that the
            // device does before the stream has ended; products use the workspace one after the other, on one stream.
            unsafe { plan.launch(self.library, place, self.workspace, self.order.stream) }
        });
        self.order.end()?;
        launched.map_err(|why| why.to_string())
    }
}

fn alignments(addresses: &[u64; 3]) -> [u32; 3] {
    addresses.map(|address| (1u64 << address.trailing_zeros().min(63)).min(MOST_ALIGNED) as u32)
}

/// A stream that keeps its place among those of a context.
struct Order {
    stream: CUstream,
    context: CUcontext,
    /// Reached when the stream may begin, and when it has ended.
    events: [CUevent; 2],
    marks: Option<Marks>,
}

/// A context and an event.
type Mark = unsafe extern "C" fn(CUcontext, CUevent) -> CUresult;

/// The driver's calls that cover all streams of a context; from CUDA 12.5 on.
struct Marks {
    /// The event comes when all is done that the context has been given.
    record: Mark,
    /// What the context is given from now on waits for the event.
    wait: Mark,
}

impl Order {
    fn open() -> Result<Self, String> {
        let said = |why: cudarc::driver::DriverError| why.to_string();
        let context = ctx::get_current().map_err(said)?;
        let made = || event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(said);
        let mut order = Self {
            stream: stream::create(stream::StreamKind::NonBlocking).map_err(said)?,
            context: context.ok_or("no device is current")?,
            events: [made()?, made()?],
            marks: Marks::find(),
        };
        if let Err(why) = order.begin().and_then(|()| order.end()) {
            tracing::warn!("each matrix product will wait for the device: {why}");
            order.marks = None;
        }
        Ok(order)
    }

    /// What the stream is given from now on waits for all that the device has been given before.
    fn begin(&self) -> Result<(), String> {
        let [ready, _] = self.events;
        // SAFETY: context, event and stream live as long as `self`.
        unsafe {
            match &self.marks {
                Some(marks) => {
                    let recorded = (marks.record)(self.context, ready).result();
                    let waits = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                    recorded.and_then(|()| stream::wait_event(self.stream, ready, waits))
                }
                None => ctx::synchronize(),
            }
        }
        .map_err(|why| why.to_string())
    }

    /// What the device is given from now on waits for the stream.
    fn end(&self) -> Result<(), String> {
        let [_, done] = self.events;
        // SAFETY: as in `begin`.
        unsafe {
            match &self.marks {
                Some(marks) => {
                    let recorded = event::record(done, self.stream);
                    recorded.and_then(|()| (marks.wait)(self.context, done).result())
                }
                None => stream::synchronize(self.stream),
            }
        }
        .map_err(|why| why.to_string())
    }
}

impl Marks {
    /// `None` with a driver that lacks them: the host then waits before and after each product.
    fn find() -> Option<Self> {
        let names = ["libcuda.so.1", "libcuda.so", "nvcuda.dll"];
        // SAFETY: the driver is loaded already, and stays; both functions are of this type.
        unsafe {
            let mut opened = names.into_iter().map(|name| libloading::Library::new(name));
            let driver = opened.find_map(Result::ok)?;
            let record = *driver.get::<Mark>(b"cuCtxRecordEvent\0").ok()?;
            let wait = *driver.get::<Mark>(b"cuCtxWaitEvent\0").ok()?;
            std::mem::forget(driver);
            Some(Self { record, wait })
        }
    }
}
