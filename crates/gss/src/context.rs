//! An established context: messages are signed, checked, encrypted and decrypted with its keys.

use crate::error::GssError;
use crate::ffi::ContextHandle;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a client and this server have agreed on. Dropped, its keys are gone.
pub struct SecurityContext(Mutex<ContextHandle>);

impl std::fmt::Debug for SecurityContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecurityContext").finish_non_exhaustive()
    }
}

impl SecurityContext {
    pub(crate) fn new(handle: ContextHandle) -> Self {
        Self(Mutex::new(handle))
    }

    fn handle(&self) -> MutexGuard<'_, ContextHandle> {
        // The library leaves a context usable, whatever a call of it ended in.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the checksum (MIC) of a message, some 30 bytes.
    ///
    /// # Errors
    /// The library's.
    pub fn mic(&self, message: &[u8]) -> Result<Vec<u8>, GssError> {
        self.handle().mic(message)
    }

    /// Checks the checksum of a message.
    ///
    /// # Errors
    /// It is not one that the client made of this message.
    pub fn verify_mic(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError> {
        self.handle().verify_mic(message, mic)
    }

    /// Encrypts and signs a message; it becomes some 60 bytes longer.
    ///
    /// # Errors
    /// The library's.
    pub fn wrap(&self, message: &[u8]) -> Result<Vec<u8>, GssError> {
        self.handle().wrap(message)
    }

    /// Decrypts a message.
    ///
    /// # Errors
    /// The client did not make it with this context, or did not encrypt it.
    pub fn unwrap(&self, wrapped: &[u8]) -> Result<Vec<u8>, GssError> {
        self.handle().unwrap(wrapped)
    }
}
