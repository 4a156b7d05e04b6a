//! Control planes that the tests of one process use one after the other, so that not every test has to start its own.
//!
//! In: how to start a control plane. Out: a control plane in the state in which it was started, new or used by an
//! earlier test. A test that fails, or that restarts a server, does not give its control plane back.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use crate::checkpoint::Checkpoint;
use crate::control_plane::{ControlPlane, Options};

/// The control planes that no test uses at the moment. `T` is a control plane with all servers that belong to it.
#[derive(Debug)]
pub struct Spares<T: 'static>(Mutex<Vec<(T, Checkpoint)>>);

/// A control plane that a later test can use. Dropping this value makes the control plane a spare again.
#[derive(Debug)]
pub struct Reusable<T: AsMut<ControlPlane> + 'static> {
    spares: &'static Spares<T>,
    // `None` only while this value is dropped.
    inner: Option<(T, Checkpoint)>,
    is_reusable: bool,
}

impl<T: AsRef<ControlPlane> + AsMut<ControlPlane>> Spares<T> {
    /// A store without any control plane.
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns a control plane with these servers: a spare one that was reset, or else a new one that `start` starts
    /// and prepares.
    pub async fn acquire(
        &'static self,
        options: Options,
        start: impl AsyncFnOnce() -> Result<T>,
    ) -> Result<Reusable<T>> {
        if let Some((servers, mut checkpoint)) = self.take(options)
            && checkpoint.restore(servers.as_ref()).await.is_ok()
        {
            return Ok(self.reusable(servers, checkpoint));
        }
        let servers = start().await?;
        let checkpoint = Checkpoint::take(servers.as_ref()).await?;
        Ok(self.reusable(servers, checkpoint))
    }

    fn take(&self, options: Options) -> Option<(T, Checkpoint)> {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = spares.iter().position(|(servers, _)| servers.as_ref().options() == options)?;
        Some(spares.swap_remove(place))
    }

    const fn reusable(&'static self, servers: T, checkpoint: Checkpoint) -> Reusable<T> {
        Reusable { spares: self, inner: Some((servers, checkpoint)), is_reusable: true }
    }
}

impl<T: AsRef<ControlPlane> + AsMut<ControlPlane>> Default for Spares<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: AsMut<ControlPlane>> Deref for Reusable<T> {
    type Target = T;

    #[allow(clippy::expect_used, reason = "it is there until this value is dropped")]
    fn deref(&self) -> &T {
        &self.inner.as_ref().expect("not dropped").0
    }
}

/// For a test that restarts a server. No other test gets this control plane afterwards.
impl<T: AsMut<ControlPlane>> DerefMut for Reusable<T> {
    #[allow(clippy::expect_used, reason = "it is there until this value is dropped")]
    fn deref_mut(&mut self) -> &mut T {
        self.is_reusable = false;
        &mut self.inner.as_mut().expect("not dropped").0
    }
}

impl<T: AsMut<ControlPlane>> Drop for Reusable<T> {
    fn drop(&mut self) {
        if !self.is_reusable || std::thread::panicking() {
            return;
        }
        if let Some((mut servers, checkpoint)) = self.inner.take()
            && servers.as_mut().end_test().is_ok()
        {
            self.spares.0.lock().unwrap_or_else(PoisonError::into_inner).push((servers, checkpoint));
        }
    }
}
