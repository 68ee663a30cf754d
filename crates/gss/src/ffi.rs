//! The library: its functions, the layouts of what they take, and safe calls of them.
//!
//! Each wrapper upholds what RFC 2744 asks of a caller: buffers live as long as the call, what comes out is released by its owner's
//! `Drop` with the function that belongs to it, and no handle is used after that.

use crate::error::{GssError, LIBRARY, LoadError};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// RFC 2744, appendix A: GSS_S_COMPLETE.
const COMPLETE: u32 = 0;
/// GSS_S_CONTINUE_NEEDED, of the supplementary bits.
const CONTINUE_NEEDED: u32 = 1;
/// GSS_S_FAILURE.
const FAILURE: u32 = 13 << 16;
/// Where calling and routine errors are; below them are the supplementary bits.
const ERRORS: u32 = 0xffff_0000;
/// GSS_C_ACCEPT.
const ACCEPT: c_int = 2;
/// GSS_C_GSS_CODE and GSS_C_MECH_CODE.
const GSS_CODE: c_int = 1;
const MECHANISM_CODE: c_int = 2;
/// GSS_C_INDEFINITE.
const INDEFINITE: u32 = u32::MAX;
/// Texts of one status that are put together.
const STATUS_TEXTS_MAX: usize = 4;

/// The mechanism Kerberos 5: 1.2.840.113554.1.2.2 (RFC 1964, section 1), in DER.
const KERBEROS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];
/// GSS_C_NT_HOSTBASED_SERVICE: 1.2.840.113554.1.2.1.4 (RFC 2744, appendix A), in DER.
const HOSTBASED_SERVICE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x01, 0x04];

/// gss_buffer_desc (RFC 2744, section 3.2).
#[repr(C)]
struct Buffer {
    length: usize,
    value: *mut c_void,
}

/// gss_OID_desc (RFC 2744, section 3.3).
#[repr(C)]
struct Oid {
    length: u32,
    elements: *mut c_void,
}

/// gss_OID_set_desc (RFC 2744, section 3.3).
#[repr(C)]
struct OidSet {
    count: usize,
    elements: *mut Oid,
}

/// gss_key_value_element_desc (MIT, gssapi_ext.h).
#[repr(C)]
struct KeyValue {
    key: *const c_char,
    value: *const c_char,
}

/// gss_key_value_set_desc (MIT, gssapi_ext.h).
#[repr(C)]
struct KeyValues {
    count: u32,
    elements: *mut KeyValue,
}

/// gss_ctx_id_t, gss_cred_id_t and gss_name_t: pointers to what only the library knows.
type Opaque = *mut c_void;

type AcceptSecContext = unsafe extern "C" fn(
    *mut u32,
    *mut Opaque,
    Opaque,
    *const Buffer,
    *const c_void,
    *mut Opaque,
    *mut *const Oid,
    *mut Buffer,
    *mut u32,
    *mut u32,
    *mut Opaque,
) -> u32;
type AcquireCredFrom = unsafe extern "C" fn(
    *mut u32,
    Opaque,
    u32,
    *const OidSet,
    c_int,
    *const KeyValues,
    *mut Opaque,
    *mut *mut OidSet,
    *mut u32,
) -> u32;
type ImportName = unsafe extern "C" fn(*mut u32, *const Buffer, *const Oid, *mut Opaque) -> u32;
type DisplayName = unsafe extern "C" fn(*mut u32, Opaque, *mut Buffer, *mut *const Oid) -> u32;
type LocalName = unsafe extern "C" fn(*mut u32, Opaque, *const Oid, *mut Buffer) -> u32;
type DisplayStatus =
    unsafe extern "C" fn(*mut u32, u32, c_int, *const Oid, *mut u32, *mut Buffer) -> u32;
type GetMic = unsafe extern "C" fn(*mut u32, Opaque, u32, *const Buffer, *mut Buffer) -> u32;
type VerifyMic =
    unsafe extern "C" fn(*mut u32, Opaque, *const Buffer, *const Buffer, *mut u32) -> u32;
type Wrap = unsafe extern "C" fn(
    *mut u32,
    Opaque,
    c_int,
    u32,
    *const Buffer,
    *mut c_int,
    *mut Buffer,
) -> u32;
type Unwrap =
    unsafe extern "C" fn(*mut u32, Opaque, *const Buffer, *mut Buffer, *mut c_int, *mut u32) -> u32;
type ReleaseHandle = unsafe extern "C" fn(*mut u32, *mut Opaque) -> u32;
type ReleaseBuffer = unsafe extern "C" fn(*mut u32, *mut Buffer) -> u32;
type DeleteSecContext = unsafe extern "C" fn(*mut u32, *mut Opaque, *mut Buffer) -> u32;

/// The functions, and the library that they are in.
pub(crate) struct Functions {
    accept_sec_context: AcceptSecContext,
    acquire_cred_from: AcquireCredFrom,
    import_name: ImportName,
    display_name: DisplayName,
    localname: LocalName,
    display_status: DisplayStatus,
    get_mic: GetMic,
    verify_mic: VerifyMic,
    wrap: Wrap,
    unwrap: Unwrap,
    release_name: ReleaseHandle,
    release_cred: ReleaseHandle,
    release_buffer: ReleaseBuffer,
    delete_sec_context: DeleteSecContext,
    /// The functions are code of it.
    _library: Library,
}

impl Functions {
    /// Loads the library.
    ///
    /// # Errors
    /// It is not there, or lacks a function.
    pub(crate) fn load() -> Result<Arc<Self>, LoadError> {
        // SAFETY: what the library runs when it is loaded registers its mechanisms, and needs nothing of this program.
        let library = unsafe { Library::new(LIBRARY) }?;
        // SAFETY: each name is of a function with the C prototype of RFC 2744, section 5, or of MIT's gssapi_ext.h, which its type repeats.
        // They are not called after `library` is dropped, which is dropped with them.
        unsafe {
            Ok(Arc::new(Self {
                accept_sec_context: *library.get(c"gss_accept_sec_context")?,
                acquire_cred_from: *library.get(c"gss_acquire_cred_from")?,
                import_name: *library.get(c"gss_import_name")?,
                display_name: *library.get(c"gss_display_name")?,
                localname: *library.get(c"gss_localname")?,
                display_status: *library.get(c"gss_display_status")?,
                get_mic: *library.get(c"gss_get_mic")?,
                verify_mic: *library.get(c"gss_verify_mic")?,
                wrap: *library.get(c"gss_wrap")?,
                unwrap: *library.get(c"gss_unwrap")?,
                release_name: *library.get(c"gss_release_name")?,
                release_cred: *library.get(c"gss_release_cred")?,
                release_buffer: *library.get(c"gss_release_buffer")?,
                delete_sec_context: *library.get(c"gss_delete_sec_context")?,
                _library: library,
            }))
        }
    }

    /// Puts into words what a status means.
    fn error(&self, major: u32, minor: u32, token: Vec<u8>) -> GssError {
        let mut texts = self.status_texts(major, GSS_CODE);
        if minor != 0 {
            texts.extend(self.status_texts(minor, MECHANISM_CODE));
        }
        GssError {
            major,
            minor,
            text: texts.join(": "),
            token,
        }
    }

    fn status_texts(&self, status: u32, code: c_int) -> Vec<String> {
        let (mut texts, mut more, mut minor) = (Vec::new(), 0, 0);
        let mechanism = oid(KERBEROS);
        while texts.len() < STATUS_TEXTS_MAX {
            let mut text = OutputBuffer::new(self);
            // SAFETY: all pointers are to live variables; `text` is empty and takes what is allocated.
            let major = unsafe {
                (self.display_status)(&mut minor, status, code, &mechanism, &mut more, text.out())
            };
            if major != COMPLETE {
                break;
            }
            texts.push(String::from_utf8_lossy(text.bytes()).into_owned());
            if more == 0 {
                break;
            }
        }
        texts
    }

    fn check(&self, major: u32, minor: u32) -> Result<(), GssError> {
        // What remains tells of the order of messages, which RPC has numbers of its own for (RFC 2203, section 5.3.3.1).
        match major & ERRORS {
            0 => Ok(()),
            _ => Err(self.error(major, minor, Vec::new())),
        }
    }
}

fn oid(elements: &'static [u8]) -> Oid {
    Oid {
        length: u32::try_from(elements.len()).expect("some bytes"),
        // The library reads object identifiers only.
        elements: elements.as_ptr().cast_mut().cast(),
    }
}

/// Bytes of ours that the library reads.
struct InputBuffer<'a>(Buffer, PhantomData<&'a [u8]>);

impl<'a> From<&'a [u8]> for InputBuffer<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        let buffer = Buffer {
            length: bytes.len(),
            // RFC 2744, section 3.2: input buffers are not changed.
            value: bytes.as_ptr().cast_mut().cast(),
        };
        Self(buffer, PhantomData)
    }
}

/// Bytes that the library has allocated.
struct OutputBuffer<'a> {
    functions: &'a Functions,
    buffer: Buffer,
}

impl<'a> OutputBuffer<'a> {
    fn new(functions: &'a Functions) -> Self {
        let buffer = Buffer {
            length: 0,
            value: null_mut(),
        };
        Self { functions, buffer }
    }

    /// Where the library writes to; once.
    fn out(&mut self) -> *mut Buffer {
        assert!(self.buffer.value.is_null(), "an output buffer in use");
        &raw mut self.buffer
    }

    fn bytes(&self) -> &[u8] {
        if self.buffer.value.is_null() {
            return &[];
        }
        // SAFETY: the library allocated that many bytes there, and they are released when `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.buffer.value.cast(), self.buffer.length) }
    }
}

impl Drop for OutputBuffer<'_> {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty, which is allowed (RFC 2744, section 5.26), or was allocated by the library.
        unsafe { (self.functions.release_buffer)(&mut minor, &mut self.buffer) };
    }
}

/// A name or a credential.
struct OwnedHandle<'a> {
    functions: &'a Functions,
    handle: Opaque,
    release: ReleaseHandle,
}

impl Drop for OwnedHandle<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let mut minor = 0;
            // SAFETY: the handle came from the library, belongs to `release`, and is used no more.
            unsafe { (self.release)(&mut minor, &mut self.handle) };
        }
    }
}

impl<'a> OwnedHandle<'a> {
    fn name(functions: &'a Functions) -> Self {
        let release = functions.release_name;
        Self {
            functions,
            handle: null_mut(),
            release,
        }
    }

    fn credential(functions: &'a Functions) -> Self {
        let release = functions.release_cred;
        Self {
            functions,
            handle: null_mut(),
            release,
        }
    }

    /// Returns a name as it is written: `user@REALM`.
    fn display(&self) -> Result<String, GssError> {
        let (mut text, mut minor) = (OutputBuffer::new(self.functions), 0);
        // SAFETY: `self` is a name, `text` is empty, and no type of it is asked for.
        let major = unsafe {
            (self.functions.display_name)(&mut minor, self.handle, text.out(), null_mut())
        };
        self.functions.check(major, minor)?;
        Ok(String::from_utf8_lossy(text.bytes()).into_owned())
    }

    /// Returns the user of this machine that a name stands for, by krb5.conf.
    fn local(&self) -> Option<String> {
        let (mut text, mut minor) = (OutputBuffer::new(self.functions), 0);
        let mechanism = oid(KERBEROS);
        // SAFETY: `self` is a name, `text` is empty, and `mechanism` lives.
        let major =
            unsafe { (self.functions.localname)(&mut minor, self.handle, &mechanism, text.out()) };
        self.functions.check(major, minor).ok()?;
        // MIT counts the zero at the end of a C string in some versions.
        let bytes = text.bytes();
        let name = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
        String::from_utf8(name.to_vec()).ok()
    }
}

/// Returns a credential for all keys of a service, such as `nfs`, in a keytab.
fn acquire<'a>(
    functions: &'a Functions,
    service: &str,
    keytab: &CStr,
) -> Result<OwnedHandle<'a>, GssError> {
    let (mut minor, mut name) = (0, OwnedHandle::name(functions));
    let service = InputBuffer::from(service.as_bytes());
    let name_type = oid(HOSTBASED_SERVICE);
    // SAFETY: the name's text and its type live; `name` takes what is allocated.
    let major =
        unsafe { (functions.import_name)(&mut minor, &service.0, &name_type, &mut name.handle) };
    functions.check(major, minor)?;
    let mut elements = [
        KeyValue {
            key: c"keytab".as_ptr(),
            value: keytab.as_ptr(),
        },
        // No list of tickets seen, which each of them would be written to disk for: what a client sends again makes a context with another
        // key of the server's, and RPC's verifiers are made with that (RFC 4121, section 2; RFC 2203, section 5.3.1).
        KeyValue {
            key: c"rcache".as_ptr(),
            value: c"none:".as_ptr(),
        },
    ];
    let store = KeyValues {
        count: u32::try_from(elements.len()).expect("two"),
        elements: elements.as_mut_ptr(),
    };
    let mut mechanism = oid(KERBEROS);
    let mechanisms = OidSet {
        count: 1,
        elements: &mut mechanism,
    };
    let mut credential = OwnedHandle::credential(functions);
    // SAFETY: `name` is a name; the set and the store, and all that they point to, live longer than the call; which mechanisms there are
    // and for how long is not asked for.
    let major = unsafe {
        (functions.acquire_cred_from)(
            &mut minor,
            name.handle,
            INDEFINITE,
            &mechanisms,
            ACCEPT,
            &store,
            &mut credential.handle,
            null_mut(),
            null_mut(),
        )
    };
    functions.check(major, minor)?;
    Ok(credential)
}

/// Checks that a keytab can be read and has a key of a service.
pub(crate) fn check_keytab(
    functions: &Functions,
    service: &str,
    keytab: &CStr,
) -> Result<(), GssError> {
    acquire(functions, service, keytab).map(drop)
}

/// What a client's token has become.
pub(crate) struct Accepted {
    pub(crate) context: ContextHandle,
    pub(crate) token: Vec<u8>,
    pub(crate) principal: String,
    pub(crate) local_name: Option<String>,
    /// How long the context is good for, in seconds; `None` for ever.
    pub(crate) lifetime_seconds: Option<u32>,
}

/// Takes a client's token.
pub(crate) fn accept(
    functions: &Arc<Functions>,
    service: &str,
    keytab: &CStr,
    token: &[u8],
) -> Result<Accepted, GssError> {
    // Anew each time: keys may have been added to the keytab.
    let credential = acquire(functions, service, keytab)?;
    let mut context = ContextHandle {
        functions: Arc::clone(functions),
        handle: null_mut(),
    };
    let mut name = OwnedHandle::name(functions);
    let mut answer = OutputBuffer::new(functions);
    let token = InputBuffer::from(token);
    let (mut minor, mut lifetime) = (0, 0);
    // SAFETY: a null context is a new one (RFC 2744, section 5.1); all other pointers are to live variables, or null where nothing is asked
    // for: channel bindings, the mechanism, flags, and a delegated credential.
    let major = unsafe {
        (functions.accept_sec_context)(
            &mut minor,
            &mut context.handle,
            credential.handle,
            &token.0,
            null(),
            &mut name.handle,
            null_mut(),
            answer.out(),
            null_mut(),
            &mut lifetime,
            null_mut(),
        )
    };
    let token = answer.bytes().to_vec();
    if major & (ERRORS | CONTINUE_NEEDED) != 0 {
        // Kerberos needs one token, but for a variant of it that DCE has: no context is kept half made.
        let major = if major & ERRORS == 0 { FAILURE } else { major };
        return Err(functions.error(major, minor, token));
    }
    Ok(Accepted {
        principal: name.display()?,
        local_name: name.local(),
        context,
        token,
        lifetime_seconds: (lifetime != INDEFINITE).then_some(lifetime),
    })
}

/// A security context of the library.
pub(crate) struct ContextHandle {
    functions: Arc<Functions>,
    handle: Opaque,
}

// SAFETY: MIT's contexts may be used by any thread, by one at a time; that `&mut self` is asked for sees to the latter.
unsafe impl Send for ContextHandle {}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.handle.is_null() {
            // SAFETY: the context came from the library and is used no more; no token is asked for (RFC 2744, section 5.9).
            unsafe {
                (self.functions.delete_sec_context)(&mut minor, &mut self.handle, null_mut())
            };
        }
    }
}

impl ContextHandle {
    /// Returns the checksum of a message.
    pub(crate) fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, GssError> {
        let (mut minor, mut mic) = (0, OutputBuffer::new(&self.functions));
        let message = InputBuffer::from(message);
        // SAFETY: the context is established, `message` lives, and `mic` is empty. 0 is the default quality of protection.
        let major =
            unsafe { (self.functions.get_mic)(&mut minor, self.handle, 0, &message.0, mic.out()) };
        self.functions.check(major, minor)?;
        Ok(mic.bytes().to_vec())
    }

    /// Checks the checksum of a message.
    pub(crate) fn verify_mic(&mut self, message: &[u8], mic: &[u8]) -> Result<(), GssError> {
        let mut minor = 0;
        let (message, mic) = (InputBuffer::from(message), InputBuffer::from(mic));
        // SAFETY: the context is established, both buffers live, and the quality of protection is not asked for.
        let major = unsafe {
            (self.functions.verify_mic)(&mut minor, self.handle, &message.0, &mic.0, null_mut())
        };
        self.functions.check(major, minor)
    }

    /// Encrypts a message.
    pub(crate) fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, GssError> {
        let (mut minor, mut encrypted) = (0, 0);
        let mut wrapped = OutputBuffer::new(&self.functions);
        let message = InputBuffer::from(message);
        // SAFETY: the context is established, `message` lives, `wrapped` is empty, and `encrypted` is a live variable.
        let major = unsafe {
            (self.functions.wrap)(
                &mut minor,
                self.handle,
                1,
                0,
                &message.0,
                &mut encrypted,
                wrapped.out(),
            )
        };
        self.functions.check(major, minor)?;
        self.confidential(encrypted)?;
        Ok(wrapped.bytes().to_vec())
    }

    /// Decrypts a message.
    pub(crate) fn unwrap(&mut self, wrapped: &[u8]) -> Result<Vec<u8>, GssError> {
        let (mut minor, mut encrypted) = (0, 0);
        let mut message = OutputBuffer::new(&self.functions);
        let wrapped = InputBuffer::from(wrapped);
        // SAFETY: the context is established, `wrapped` lives, `message` is empty, and `encrypted` is a live variable.
        let major = unsafe {
            (self.functions.unwrap)(
                &mut minor,
                self.handle,
                &wrapped.0,
                message.out(),
                &mut encrypted,
                null_mut(),
            )
        };
        self.functions.check(major, minor)?;
        self.confidential(encrypted)?;
        Ok(message.bytes().to_vec())
    }

    /// Refuses what was signed only where it was to be encrypted.
    fn confidential(&self, encrypted: c_int) -> Result<(), GssError> {
        match encrypted {
            0 => Err(self.functions.error(FAILURE, 0, Vec::new())),
            _ => Ok(()),
        }
    }
}
