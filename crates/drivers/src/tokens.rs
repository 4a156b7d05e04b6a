//! Sources of bearer tokens for drivers. Tokens are never logged, and the types that hold them can't be printed.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use google_cloud_auth::credentials::{AccessTokenCredentials, Builder};

use crate::DriverError;

/// A source of bearer tokens. Drivers call it before every request, so they use a rotated token at once.
pub trait Tokens: Send + Sync {
    /// Returns a valid token.
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>>;
}

/// A token that never changes.
pub struct Fixed(String);

/// Tokens from a value that never changes, such as an environment variable.
pub fn fixed(token: impl Into<String>) -> Arc<dyn Tokens> {
    Arc::new(Fixed(token.into()))
}

impl Tokens for Fixed {
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        futures::future::ready(Ok(self.0.clone())).boxed()
    }
}

/// A secret that is not configured.
struct Missing(&'static str);

/// Stands for a secret that is not configured. Every call fails with the name of the setting.
pub fn missing(setting: &'static str) -> Arc<dyn Tokens> {
    Arc::new(Missing(setting))
}

impl Tokens for Missing {
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        let message =
            format!("{} is not set: the controller needs this TSIG secret to sign DNS messages", self.0);
        futures::future::ready(Err(DriverError::Invalid(message))).boxed()
    }
}

/// A token in a mounted file. It is read for every call, because the file changes when the Secret is rotated.
pub struct InFile(PathBuf);

/// Tokens from a mounted file.
pub fn in_file(path: impl Into<PathBuf>) -> Arc<dyn Tokens> {
    Arc::new(InFile(path.into()))
}

impl Tokens for InFile {
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        async {
            let text = tokio::fs::read_to_string(&self.0).await;
            let text = text.map_err(|error| {
                DriverError::Unavailable(format!("can't read the token in {}: {error}", self.0.display()))
            })?;
            Ok(text.trim().to_owned())
        }
        .boxed()
    }
}

/// Google's default credentials: a key file, workload identity, or the metadata server of the VM.
pub struct Google(AccessTokenCredentials);

/// Tokens from Google's default credentials.
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
