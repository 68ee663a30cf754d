//! The services of a daemon: each is present where it is served, and follows the datasets and their properties.

use std::sync::OnceLock;

use engine::EngineError;

use super::context::Context;
use super::fences::Fences;
use crate::serve::devices::Devices;
use crate::serve::iscsi::Iscsi;
use crate::serve::nbd;
use crate::serve::shares::Shares;
use crate::serve::smb::Smb;

/// A protocol by which file systems are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareProtocol {
    /// NFS.
    Nfs,
    /// SMB.
    Smb,
}

impl ShareProtocol {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Nfs, Self::Smb];
}

/// See the module.
#[derive(Default)]
pub(super) struct Services {
    /// What is fenced.
    pub(super) fences: Fences,
    /// Present in a daemon.
    pub(super) shares: OnceLock<Shares>,
    /// Present in a daemon that serves NBD.
    pub(super) nbd: OnceLock<nbd::Server>,
    /// Present in a daemon that serves iSCSI.
    pub(super) iscsi: OnceLock<Iscsi>,
    /// Present in a daemon that serves SMB.
    pub(super) smb: OnceLock<Smb>,
    /// Present in a daemon that makes block devices of volumes.
    pub(super) devices: OnceLock<Devices>,
}

impl Services {
    /// Ends all of them at the end of the process.
    pub(super) async fn close(&self) {
        if let Some(shares) = self.shares.get() {
            shares.close().await;
        }
        if let Some(nbd) = self.nbd.get() {
            nbd.close().await;
        }
        if let Some(iscsi) = self.iscsi.get() {
            iscsi.close().await;
        }
        if let Some(smb) = self.smb.get() {
            smb.close().await;
        }
        if let Some(devices) = self.devices.get() {
            devices.close().await;
        }
    }

    /// Makes them follow datasets and their properties.
    pub(super) async fn follow(&self, context: &Context) {
        self.fences.follow(context).await;
        if let Some(shares) = self.shares.get() {
            shares.refresh(context).await;
        }
        if let Some(nbd) = self.nbd.get() {
            nbd.follow().await;
        }
        if let Some(iscsi) = self.iscsi.get() {
            iscsi.follow().await;
        }
        if let Some(smb) = self.smb.get() {
            smb.follow().await;
        }
        self.follow_devices().await;
    }

    /// As [`Self::follow`], for the block devices of volumes alone.
    pub(super) async fn follow_devices(&self) {
        if let Some(devices) = self.devices.get() {
            devices.follow().await;
        }
    }

    /// As [`Self::follow`], for those who show snapshots as if they were datasets.
    pub(super) async fn follow_snapshots(&self) {
        if let Some(devices) = self.devices.get() {
            devices.follow_snapshots().await;
        }
    }

    /// Takes back what is served of a pool that is about to be ended.
    ///
    /// # Errors
    /// A volume of it is in use.
    pub(super) async fn withdraw_pool(
        &self,
        context: &Context,
        name: &str,
    ) -> Result<(), EngineError> {
        if let Some(devices) = self.devices.get() {
            devices
                .release(|dataset| crate::names::pool_part(dataset) == name)
                .await
                .map_err(EngineError::Busy)?;
        }
        if let Some(shares) = self.shares.get() {
            shares.withdraw_pool(context, name).await;
        }
        if let Some(smb) = self.smb.get() {
            smb.withdraw_pool(name).await;
        }
        Ok(())
    }

    /// Shares again what was withdrawn: one dataset, or all; by these protocols.
    pub(super) async fn share_again(
        &self,
        context: &Context,
        guid: Option<u64>,
        protocols: &[ShareProtocol],
    ) {
        if protocols.contains(&ShareProtocol::Nfs)
            && let Some(shares) = self.shares.get()
        {
            shares.restore(guid);
            shares.refresh(context).await;
        }
        if protocols.contains(&ShareProtocol::Smb)
            && let Some(smb) = self.smb.get()
        {
            smb.restore(guid);
            smb.follow().await;
        }
    }

    /// Withdraws the share of a dataset by these protocols, until `zfs share` or the next start.
    pub(super) async fn unshare(&self, context: &Context, guid: u64, protocols: &[ShareProtocol]) {
        if protocols.contains(&ShareProtocol::Nfs)
            && let Some(shares) = self.shares.get()
        {
            shares.withdraw(guid);
            shares.refresh(context).await;
        }
        if protocols.contains(&ShareProtocol::Smb)
            && let Some(smb) = self.smb.get()
        {
            smb.withdraw(guid);
            smb.follow().await;
        }
    }
}

/// Says what is wrong with the share options among some settings, if anything.
pub(crate) fn check_share_settings(settings: &[(String, String)]) -> Option<String> {
    let smb = settings.iter().find(|(name, _)| name == "sharesmb");
    if let Some(error) = smb.and_then(|(_, value)| manage::samba::share::parse(value).err()) {
        return Some(format!(
            "'sharesmb' cannot be set to invalid options: {error}"
        ));
    }
    let (_, value) = settings.iter().find(|(name, _)| name == "sharenfs")?;
    if matches!(value.as_str(), "on" | "off") {
        return None;
    }
    let error = nfs::exports::Rules::parse(value).err()?;
    Some(format!(
        "'sharenfs' cannot be set to invalid options: {error}"
    ))
}
