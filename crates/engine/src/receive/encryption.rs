//! How what is received is encrypted: what the command line says of it, and what follows from the stream.
//!
//! A raw stream brings its keys. The blocks of any other come as plain text: those of a dataset that is new are encrypted here, as those
//! of `zfs create` are. OpenZFS: lib/libzfs/libzfs_sendrecv.c, zfs_setup_cmdline_props and zfs_receive_one.

use dsl::NewKey;

use super::Work;
use super::destination::Destination;
use super::package::Package;
use super::properties::{NewEncryption, is_of_keys};
use crate::EngineError;
use crate::property::{Property, Setting, Value};

/// The value `off` of the property `encryption`.
const OFF: u64 = 2;
const OVERWRITES: &str = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one \
                          with an encrypted one";

impl Work {
    /// Refuses encryption properties of the command line that do not go with the stream.
    pub(super) fn check_overrides(
        &self,
        to: &Destination<'_>,
        recursive: bool,
    ) -> Result<(), EngineError> {
        let overrides = &self.request.overrides;
        let mut set = overrides.set.iter().map(|(name, _)| name);
        let first = set.find(|name| is_of_keys(name));
        if to.is_raw() {
            let mut excluded = overrides.excluded.iter();
            return match first.or_else(|| excluded.find(|name| is_of_keys(name))) {
                Some(name) => Err(to.refused(format!(
                    "encryption property '{name}' cannot be set or excluded for raw streams."
                ))),
                None => Ok(()),
            };
        }
        match first {
            // What comes later in a package takes the keys of what came first.
            Some(name) if !to.makes_dataset() && !recursive => Err(to.refused(format!(
                "encryption property '{name}' cannot be set for incremental streams."
            ))),
            _ => Ok(()),
        }
    }

    /// How the dataset that a stream makes is encrypted, with the key that was given for it.
    pub(super) async fn encryption_of(
        &self,
        to: &Destination<'_>,
        package: Option<&Package>,
        is_top: bool,
    ) -> Result<NewEncryption, EngineError> {
        if to.is_raw() || !to.makes_dataset() {
            return Ok(NewEncryption::default());
        }
        let overrides = &self.request.overrides;
        let of_keys = overrides.set.iter().filter(|(name, _)| is_of_keys(name));
        // What lies below the first dataset of a package inherits what that has.
        let typed: Vec<_> = of_keys.filter(|_| is_top).cloned().collect();
        let settings = self.context.settings(&typed, to.kind, true);
        let mut settings = settings.map_err(|error| to.refused(error))?;
        let hierarchy = self.context.pool.hierarchy();
        let planned = hierarchy.plan_key(&to.dataset, &settings).await;
        let planned = planned.map_err(|error| to.refused(error))?;
        let key = match planned {
            Some(planned) if planned.location == "prompt" => {
                return Err(to.refused("Cannot use 'prompt' keylocation because stdin is in use."));
            }
            Some(_) => Some(self.given_key(to)?),
            None => None,
        };
        // A sender brings properties of plain datasets alone.
        let says = |name: &String| Property::from_name(name) == Some(Property::Encryption);
        let is_said =
            overrides.set.iter().any(|(name, _)| says(name)) || overrides.excluded.iter().any(says);
        let sent = package.and_then(|package| package.find(to.begin.to_guid));
        let brings = sent.is_some_and(|(sent, _)| sent.properties.is_some());
        if brings && !is_said {
            let off = Value::Number(OFF);
            settings.push(Setting::Native(Property::Encryption, off));
        }
        if to.existed {
            let encrypts = settings.iter().any(|setting| {
                matches!(setting, Setting::Native(Property::Encryption, value) if value.number() != Some(OFF))
            });
            return match encrypts || key.is_some() {
                true => Err(to.refused(OVERWRITES)),
                false => Ok(NewEncryption::default()),
            };
        }
        Ok(NewEncryption { settings, key })
    }

    fn given_key(&self, to: &Destination<'_>) -> Result<NewKey, EngineError> {
        match &self.request.key {
            Some(Ok(key)) => Ok(key.clone()),
            Some(Err(why)) => Err(to.refused(why)),
            None => Err(to.refused(dsl::DslError::NoKey)),
        }
    }
}
