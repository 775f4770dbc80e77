//! NCCL, as far as ranks use it: the functions of the library that is installed. It is opened while the program runs, since a machine
//! with one GPU has no need of it.
#![expect(unsafe_code, reason = "NCCL is a C library")]
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library as Opened;

/// What NCCL calls success, and what it says while a communicator that does not block is at work.
const SUCCESS: u32 = 0;
const IN_PROGRESS: u32 = 7;

/// `ncclFloat32`.
const F32: u32 = 7;

/// A communicator.
pub(super) type Comm = *mut c_void;

/// A stream of CUDA's.
pub(super) type Stream = *mut c_void;

/// What communicators of one group have in common.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId([u8; UniqueId::BYTES]);

impl UniqueId {
    const BYTES: usize = 128;

    pub(super) fn bytes(self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// `None` unless these are as many bytes as one has.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// `ncclConfig_t` as of NCCL 2.14, which later ones take too: they go by its version.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// NCCL's functions. Those of communicators return an `ncclResult_t`.
pub(super) struct Library {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> u32,
    init: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> u32,
    async_error: unsafe extern "C" fn(Comm, *mut u32) -> u32,
    abort: unsafe extern "C" fn(Comm) -> u32,
    group_start: unsafe extern "C" fn() -> u32,
    group_end: unsafe extern "C" fn() -> u32,
    send: unsafe extern "C" fn(*const c_void, usize, u32, c_int, Comm, Stream) -> u32,
    receive: unsafe extern "C" fn(*mut c_void, usize, u32, c_int, Comm, Stream) -> u32,
    broadcast:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, u32, c_int, Comm, Stream) -> u32,
    error_string: unsafe extern "C" fn(u32) -> *const c_char,
}

impl Library {
    /// The one that is installed.
    ///
    /// # Errors
    /// There is none, or it is older than 2.14.
    pub(super) fn open() -> Result<Self, String> {
        let names = ["libnccl.so.2", "libnccl.so"];
        // SAFETY: NCCL may be opened at any time, and stays open; its functions are of these types.
        unsafe {
            let opened = names.into_iter().find_map(|name| Opened::new(name).ok());
            let opened = opened.ok_or("libnccl.so.2 was not found; PyPI's nvidia-nccl has it")?;
            let library = Self {
                get_unique_id: function(&opened, c"ncclGetUniqueId")?,
                init: function(&opened, c"ncclCommInitRankConfig")?,
                async_error: function(&opened, c"ncclCommGetAsyncError")?,
                abort: function(&opened, c"ncclCommAbort")?,
                group_start: function(&opened, c"ncclGroupStart")?,
                group_end: function(&opened, c"ncclGroupEnd")?,
                send: function(&opened, c"ncclSend")?,
                receive: function(&opened, c"ncclRecv")?,
                broadcast: function(&opened, c"ncclBroadcast")?,
                error_string: function(&opened, c"ncclGetErrorString")?,
            };
            std::mem::forget(opened);
            Ok(library)
        }
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: it writes the id.
        self.done(unsafe { (self.get_unique_id)(&raw mut id) })?;
        Ok(id)
    }

    /// Begins to make a communicator on the device whose context is current. It is ready when [`Self::is_done`] says so.
    pub(super) fn init(&self, id: UniqueId, rank: usize, count: usize) -> Result<Comm, String> {
        let mut config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_400,
            blocking: 0,
        };
        let mut comm = std::ptr::null_mut();
        let (rank, count) = (rank as c_int, count as c_int);
        // SAFETY: it reads the configuration and writes the communicator.
        let said = unsafe { (self.init)(&raw mut comm, count, id, rank, &raw mut config) };
        self.done(said)?;
        Ok(comm)
    }

    /// Whether a communicator has done, or launched, what it was last told to.
    pub(super) fn is_done(&self, comm: Comm) -> Result<bool, String> {
        let mut state = SUCCESS;
        // SAFETY: the communicator has not been aborted; the state is written.
        self.done(unsafe { (self.async_error)(comm, &raw mut state) })?;
        self.done(state)?;
        Ok(state != IN_PROGRESS)
    }

    /// Ends a communicator, and whatever of it is on a device.
    pub(super) fn abort(&self, comm: Comm) {
        // SAFETY: nothing uses the communicator any more. A failure has no consequence here.
        let _ = unsafe { (self.abort)(comm) };
    }

    /// Launches what `each` gives at a time.
    pub(super) fn group(&self, each: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        // SAFETY: every start has its end.
        unsafe {
            self.done((self.group_start)())?;
            let given = each();
            let ended = self.done((self.group_end)());
            given.and(ended)
        }
    }

    /// Sends numbers in f32 from an address on the device.
    ///
    /// # Safety
    /// They are there until the stream has come past this.
    pub(super) unsafe fn send(
        &self,
        (from, length): (u64, usize),
        peer: usize,
        comm: Comm,
        stream: Stream,
    ) -> Result<(), String> {
        let from = from as *const c_void;
        // SAFETY: the caller's.
        self.done(unsafe { (self.send)(from, length, F32, peer as c_int, comm, stream) })
    }

    /// Has numbers in f32 come to an address on the device.
    ///
    /// # Safety
    /// It has place for them, which nothing else uses until the stream has come past this.
    pub(super) unsafe fn receive(
        &self,
        (into, length): (u64, usize),
        peer: usize,
        comm: Comm,
        stream: Stream,
    ) -> Result<(), String> {
        let into = into as *mut c_void;
        // SAFETY: the caller's.
        self.done(unsafe { (self.receive)(into, length, F32, peer as c_int, comm, stream) })
    }

    /// Has numbers in f32 go from an address on the device of `root` to one on each other.
    ///
    /// # Safety
    /// As [`Self::send`] and [`Self::receive`].
    pub(super) unsafe fn broadcast(
        &self,
        (at, length): (u64, usize),
        root: usize,
        comm: Comm,
        stream: Stream,
    ) -> Result<(), String> {
        let (from, into, root) = (at as *const c_void, at as *mut c_void, root as c_int);
        // SAFETY: the caller's.
        self.done(unsafe { (self.broadcast)(from, into, length, F32, root, comm, stream) })
    }

    /// An `ncclResult_t` that is no error.
    fn done(&self, said: u32) -> Result<(), String> {
        if said == SUCCESS || said == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: it is a text that lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.error_string)(said)) };
        Err(text.to_string_lossy().into_owned())
    }
}

/// # Safety
/// The function is of this type, and used no longer than the library is open.
unsafe fn function<T: Copy>(opened: &Opened, name: &CStr) -> Result<T, String> {
    // SAFETY: the caller's.
    let found = unsafe { opened.get::<T>(name.to_bytes_with_nul()) };
    found.map(|function| *function).map_err(|_| {
        format!(
            "NCCL lacks {}: it is older than 2.14",
            name.to_string_lossy()
        )
    })
}
