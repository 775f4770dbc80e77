//! What libraries of CUDA need to know of CubeCL, which launches kernels on streams that it shows to nobody: where tensors lie, and a
//! stream that waits for all that the device has been given before, and for which all that comes later waits.
#![expect(unsafe_code, reason = "CUDA's driver is a C library")]
use std::sync::Once;

use burn_cubecl::tensor::CubeTensor;
use cubecl::cuda::CudaRuntime;
use cubecl::server::BufferBinding;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::ServerStorage;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use cudarc::driver::DriverError;
use cudarc::driver::result::{ctx, event, stream};
use cudarc::driver::sys::{
    CUcontext, CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream, cuStreamQuery,
};

/// Calls `work` with the addresses at which tensors of a device of CUDA start; they keep their memory until it is over.
///
/// # Errors
/// CubeCL has no memory for one of them; those of `work`.
pub fn with_addresses<T>(
    tensors: &[&CubeTensor],
    work: impl FnOnce(&[u64]) -> Result<T, String>,
) -> Result<T, String> {
    let mut held = Vec::with_capacity(tensors.len());
    for of in tensors {
        let found = of.client.get_resource::<Server>(of.handle.clone());
        held.push(found.map_err(|why| format!("{why:?}"))?);
    }
    let starts: Vec<u64> = held.iter().map(|of| of.resource().ptr).collect();
    work(&starts)
}

/// Memory of a device whose addresses are known.
pub(super) struct Held<const N: usize>([Resource; N]);

/// What gives memory out on a device of CUDA.
pub(super) type Server = <CudaRuntime as Runtime>::Server;
type Resource = ManagedResource<<<Server as ServerStorage>::Storage as ComputeStorage>::Resource>;

impl<const N: usize> Held<N> {
    /// Where each begins. They keep their memory as long as this lives.
    pub(super) fn starts(&self) -> [u64; N] {
        self.0.each_ref().map(|of| of.resource().ptr)
    }
}

/// Where tensors start, asked of the server on the thread of its device.
///
/// # Errors
/// CubeCL has no memory for one of them, or what was to fill it failed.
pub(super) fn addresses<const N: usize>(
    server: &DeviceHandle<Server>,
    tensors: [&BufferBinding; N],
) -> Result<Held<N>, String> {
    let stream = StreamId::current();
    let ask = |server: &mut Server| {
        let found = tensors.map(|of| server.get_resource(of.clone(), stream));
        let all: Result<Vec<Resource>, _> = found.into_iter().collect();
        all.map_err(|why| format!("{why:?}"))
    };
    let found = server
        .submit_blocking(ask)
        .map_err(|why| format!("{why:?}"))?;
    let found = found?.try_into().map_err(|_| "as many as were asked for");
    Ok(Held(found?))
}

/// A stream that keeps its place among those of a context.
pub struct Order {
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
    /// One of the context that is current: call it on the thread of a device (`ComputeClient::exclusive`).
    ///
    /// # Errors
    /// What CUDA's driver says.
    pub fn open() -> Result<Self, String> {
        let said = |why: DriverError| why.to_string();
        let context = ctx::get_current().map_err(said)?;
        let made = || event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(said);
        let mut order = Self {
            stream: stream::create(stream::StreamKind::NonBlocking).map_err(said)?,
            context: context.ok_or("no device is current")?,
            events: [made()?, made()?],
            marks: Marks::find(),
        };
        let lacking = match &order.marks {
            Some(_) => order.begin().and_then(|()| order.end()).err(),
            None => Some("the driver is older than CUDA 12.5".to_owned()),
        };
        if let Some(why) = lacking {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!(
                    "training will be slower: each call of a library of CUDA waits for the device: {why}"
                );
            });
            order.marks = None;
        }
        Ok(order)
    }

    /// Where libraries are to work.
    pub fn stream(&self) -> CUstream {
        self.stream
    }

    /// Makes the context the one that calls of this thread are for: a thread other than the device's has none.
    ///
    /// # Errors
    /// What CUDA's driver says.
    pub fn make_current(&self) -> Result<(), String> {
        // SAFETY: the context is the device's own, which lives as long as the program.
        unsafe { ctx::set_current(self.context) }.map_err(|why| why.to_string())
    }

    /// Whether the stream has done all that it was given.
    ///
    /// # Errors
    /// What CUDA's driver says.
    pub fn is_done(&self) -> Result<bool, String> {
        self.make_current()?;
        // SAFETY: the stream lives as long as `self`.
        match unsafe { cuStreamQuery(self.stream) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            said => said.result().map(|()| true).map_err(|why| why.to_string()),
        }
    }

    /// What the stream is given from now on waits for all that the device has been given before.
    ///
    /// # Errors
    /// What CUDA's driver says.
    pub fn begin(&self) -> Result<(), String> {
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
    ///
    /// # Errors
    /// What CUDA's driver says.
    pub fn end(&self) -> Result<(), String> {
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
    /// `None` with a driver that lacks them: the host then waits in `begin` and in `end`.
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
