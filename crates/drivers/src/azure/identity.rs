//! Tokens for Azure, from Azure's identity library, over the connections of this crate.
//!
//! In: the credentials from the environment variables that Azure's libraries use, and an HTTP service. Out: a
//! [`Tokens`]. The first line that applies is used:
//!
//! ```text
//! AZURE_FEDERATED_TOKEN_FILE   workload identity: exchanges the pod's token for an Azure token
//! AZURE_CLIENT_SECRET          an application and its secret
//! neither                      the managed identity of the VM; AZURE_CLIENT_ID selects one of several
//! ```
//!
//! The library caches a token until shortly before it expires. Token requests are not fenced: they change nothing, and
//! a process that is not the leader also reads from Azure.

use std::path::PathBuf;
use std::sync::Arc;

use ::http::Request;
use azure_core::Error;
use azure_core::cloud::CustomConfiguration;
use azure_core::credentials::{Secret, TokenCredential};
use azure_core::error::ErrorKind;
use azure_core::http::headers::Headers;
use azure_core::http::{AsyncRawResponse, Body, ClientOptions, HttpClient, RetryOptions, Transport};
use azure_identity::{
    ClientAssertionCredentialOptions, ClientSecretCredential, ClientSecretCredentialOptions,
    ManagedIdentityCredential, ManagedIdentityCredentialOptions, UserAssignedId, WorkloadIdentityCredential,
    WorkloadIdentityCredentialOptions,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::OnceCell;
use tower::ServiceExt;

use crate::DriverError;
use crate::http::{HttpService, hide_secrets};
use crate::tokens::Tokens;

/// The credentials for Azure.
#[derive(Clone, Default)]
pub struct Identity {
    /// The tenant that the identity belongs to.
    pub tenant: String,
    /// The client ID of the application or managed identity.
    pub client: Option<String>,
    /// The application's secret.
    pub secret: Option<String>,
    /// The file with the service account token of the pod.
    pub federated_token_file: Option<PathBuf>,
    /// The URL of the token service. `None` for Azure's public cloud.
    pub authority: Option<String>,
}

struct FromIdentity {
    identity: Identity,
    service: HttpService,
    /// The scope of the token.
    audience: String,
    /// Created with the first token, so a controller that does not use Azure needs no credentials for it.
    credential: OnceCell<Arc<dyn TokenCredential>>,
}

/// Tokens of an identity for the API at `url`. `service` must not be fenced.
pub fn tokens(identity: Identity, service: HttpService, url: &str) -> Arc<dyn Tokens> {
    let audience = format!("{}/.default", url.trim_end_matches('/'));
    Arc::new(FromIdentity { identity, service, audience, credential: OnceCell::new() })
}

impl FromIdentity {
    fn credential(&self) -> azure_core::Result<Arc<dyn TokenCredential>> {
        let Identity { tenant, client, secret, federated_token_file, authority } = self.identity.clone();
        let cloud = authority.map(|authority_host| {
            let mut cloud = CustomConfiguration::default();
            cloud.authority_host = authority_host;
            Arc::new(cloud.into())
        });
        let client_options = ClientOptions {
            // The callers retry. For the metadata service of the VM, the library replaces this by its own retries.
            retry: RetryOptions::none(),
            transport: Some(Transport::new(Arc::new(OurConnections(self.service.clone())))),
            cloud,
            ..ClientOptions::default()
        };
        if let Some(file) = federated_token_file {
            let options = WorkloadIdentityCredentialOptions {
                credential_options: ClientAssertionCredentialOptions { client_options },
                client_id: client,
                tenant_id: Some(tenant),
                token_file_path: Some(file),
            };
            return Ok(WorkloadIdentityCredential::new(Some(options))?);
        }
        if let Some(secret) = secret {
            let options = ClientSecretCredentialOptions { client_options };
            let client = client.unwrap_or_default();
            return Ok(ClientSecretCredential::new(&tenant, client, Secret::new(secret), Some(options))?);
        }
        let user_assigned_id = client.map(UserAssignedId::ClientId);
        let options = ManagedIdentityCredentialOptions { user_assigned_id, client_options };
        Ok(ManagedIdentityCredential::new(Some(options))?)
    }
}

impl Tokens for FromIdentity {
    fn token(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        async {
            let unavailable =
                |error: Error| DriverError::Unavailable(format!("no credentials for Azure: {error}"));
            let credential = self.credential.get_or_try_init(async || self.credential()).await;
            let credential = credential.map_err(unavailable)?;
            let token = credential.get_token(&[&self.audience], None).await.map_err(unavailable)?;
            Ok(token.token.secret().to_owned())
        }
        .boxed()
    }
}

/// The HTTP client that Azure's library uses.
struct OurConnections(HttpService);

impl std::fmt::Debug for OurConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OurConnections")
    }
}

impl HttpClient for OurConnections {
    fn execute_request<'a, 'b, 'c>(
        &'a self,
        request: &'b azure_core::http::Request,
    ) -> BoxFuture<'c, azure_core::Result<AsyncRawResponse>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        async move {
            let failed = |error: tower::BoxError| Error::new(ErrorKind::Io, error);
            let mut sent = Request::builder().method(request.method().as_str()).uri(request.url().as_str());
            for (name, value) in request.headers().iter() {
                sent = sent.header(name.as_str(), value.as_str());
            }
            let Body::Bytes(body) = request.body() else {
                return Err(failed("token requests with a streamed body are not supported".into()));
            };
            let mut sent = sent.body(body.clone()).map_err(|error| failed(error.into()))?;
            hide_secrets(sent.headers_mut());
            let (head, body) = self.0.clone().oneshot(sent).await.map_err(failed)?.into_parts();
            let mut headers = Headers::new();
            for (name, value) in &head.headers {
                let value = value.to_str().unwrap_or_default().to_owned();
                headers.insert(name.as_str().to_owned(), value);
            }
            Ok(AsyncRawResponse::from_bytes(head.status.as_u16().into(), headers, body))
        }
        .boxed()
    }
}
