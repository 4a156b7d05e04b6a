//! Where drivers get their bearer tokens. A token is never logged, and its holder never prints it.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use google_cloud_auth::credentials::{AccessTokenCredentials, Builder};

use crate::DriverError;

/// A source of bearer tokens. It is asked before every call, so a rotated token is used at once.
pub trait Tokens: Send + Sync {
    /// A token that is valid now.
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>>;
}

/// A token that never changes.
pub struct Fixed(String);

/// The token of an environment variable, read once.
pub fn fixed(token: impl Into<String>) -> Arc<dyn Tokens> {
    Arc::new(Fixed(token.into()))
}

impl Tokens for Fixed {
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        futures::future::ready(Ok(self.0.clone())).boxed()
    }
}

/// A secret that should be there and is not.
struct Missing(&'static str);

/// In place of a secret that the setting of this name should have given.
pub fn missing(setting: &'static str) -> Arc<dyn Tokens> {
    Arc::new(Missing(setting))
}

impl Tokens for Missing {
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        let message = format!("{} is not set, and nothing is sent unsigned", self.0);
        futures::future::ready(Err(DriverError::Invalid(message))).boxed()
    }
}

/// A token in a mounted file, read again for every call because a Secret's file changes when it is rotated.
pub struct InFile(PathBuf);

/// The token in a mounted file.
pub fn in_file(path: impl Into<PathBuf>) -> Arc<dyn Tokens> {
    Arc::new(InFile(path.into()))
}

impl Tokens for InFile {
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        async {
            let text = tokio::fs::read_to_string(&self.0).await;
            let text = text.map_err(|error| {
                DriverError::Unavailable(format!("reading the token in {}: {error}", self.0.display()))
            })?;
            Ok(text.trim().to_owned())
        }
        .boxed()
    }
}

/// Google's own chain: a key file, workload identity, or the metadata server of the machine.
pub struct Google(AccessTokenCredentials);

/// Google's default credentials.
pub fn google() -> Result<Arc<dyn Tokens>, DriverError> {
    let scope = "https://www.googleapis.com/auth/compute";
    let credentials = Builder::default().with_scopes([scope]).build_access_token_credentials();
    let credentials = credentials.map_err(|error| unavailable(&error))?;
    Ok(Arc::new(Google(credentials)))
}

impl Tokens for Google {
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        async {
            let token = self.0.access_token().await.map_err(|error| unavailable(&error))?;
            Ok(token.token)
        }
        .boxed()
    }
}

fn unavailable(error: &dyn std::error::Error) -> DriverError {
    DriverError::Unavailable(format!("no credentials for Google Cloud: {error}"))
}
