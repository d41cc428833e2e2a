//! The plain HTTP server for probes and metrics.

use std::{
    fmt::Write as _,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use super::{
    clock,
    metrics::{CONTENT_TYPE, Metrics},
    shutdown::{self, Shutdown},
};

type Check = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Named checks; all have to pass. A check answers from memory: it must not block.
#[derive(Clone, Default)]
pub struct Checks(Arc<Mutex<Vec<(&'static str, Check)>>>);

impl Checks {
    /// Adds a check. It says what is wrong, if anything is.
    pub fn add(&self, name: &'static str, check: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, Arc::new(check)));
    }

    /// Adds a check of something that is waited for, but no longer than `limit` from now. `error` says that it is not there yet.
    pub fn add_at_most(
        &self,
        limit: Duration,
        name: &'static str,
        error: &'static str,
        is_there: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        let until = clock::now().mono + limit;
        self.add(name, move || (!is_there() && clock::now().mono <= until).then(|| error.to_owned()));
    }

    /// Every failing check with its error.
    pub fn failing(&self) -> Vec<(&'static str, String)> {
        let checks = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        checks.into_iter().filter_map(|(name, check)| Some((name, check()?))).collect()
    }

    fn answer(&self) -> Response {
        let failing = self.failing();
        if failing.is_empty() {
            return "ok".into_response();
        }
        let mut body = String::new();
        for (name, error) in failing {
            let _ = writeln!(body, "{name}: {error}");
        }
        (StatusCode::INTERNAL_SERVER_ERROR, body).into_response()
    }
}

/// `/healthz` and `/readyz`.
pub fn probes(health: Checks, ready: Checks) -> Router {
    let answer = async |State(checks): State<Checks>| checks.answer();
    Router::new()
        .route("/healthz", get(answer).with_state(health))
        .route("/readyz", get(async |State(checks): State<Checks>| checks.answer()).with_state(ready))
}

/// `/metrics`.
pub fn metrics(metrics: Arc<Metrics>) -> Router {
    let render = async |State(metrics): State<Arc<Metrics>>| match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    Router::new().route("/metrics", get(render).with_state(metrics))
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Not an address.
    #[error("listen address {0:?}: want HOST:PORT, :PORT, or 0 to switch it off")]
    Malformed(String),
    /// The system refuses it.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: String,
        /// What the system says.
        error: io::Error,
    },
}

/// Listens on `HOST:PORT` or `:PORT` (all addresses); None for `0` and the empty text, which switch a server off.
///
/// # Errors
/// Naming the address.
pub async fn listen(address: &str) -> Result<Option<TcpListener>, AddressError> {
    if address.is_empty() || address == "0" {
        return Ok(None);
    }
    let malformed = || AddressError::Malformed(address.to_owned());
    let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
    let port: u16 = port.parse().map_err(|_| malformed())?;
    let bound = if host.is_empty() {
        // One IPv6 socket takes both families, where the node has IPv6.
        match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
            Err(_) => TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await,
            listener => listener,
        }
    } else {
        TcpListener::bind((host.trim_start_matches('[').trim_end_matches(']'), port)).await
    };
    bound.map(Some).map_err(|error| AddressError::Bind { address: address.to_owned(), error })
}

/// Serves until the shutdown.
///
/// # Errors
/// If the listener breaks.
pub async fn serve(listener: TcpListener, router: Router, shutdown: Shutdown) -> io::Result<()> {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving HTTP");
    }
    axum::serve(listener, router).with_graceful_shutdown(shutdown::requested(shutdown)).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::{body::Body, http::Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn get_text(router: &Router, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn what_can_be_done_without_is_waited_for_a_while_only() {
        let limit = Duration::from_secs(30);
        let checks = Checks::default();
        let known = Arc::new(Mutex::new(false));
        let of_check = known.clone();
        checks.add_at_most(limit, "budgets", "they are still being read", move || *of_check.lock().unwrap());
        tokio::time::advance(limit).await;
        assert_eq!(checks.failing(), [("budgets", "they are still being read".into())]);
        *known.lock().unwrap() = true;
        assert_eq!(checks.failing(), []);
        *known.lock().unwrap() = false;
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(checks.failing(), []);
    }

    /// D35 and E33 of SidecarSet: readiness is asked again and again, and is not there before everything is.
    #[tokio::test]
    async fn sw_d35_e33_every_failing_check_is_listed() {
        let (health, ready) = (Checks::default(), Checks::default());
        let router = probes(health.clone(), ready.clone());
        assert_eq!(get_text(&router, "/healthz").await, (200, "ok".into()));
        let broken = Arc::new(AtomicBool::new(true));
        let state = broken.clone();
        ready.add("cache", move || state.load(Ordering::SeqCst).then(|| "not in sync".into()));
        ready.add("fine", || None);
        ready.add("runtime", || Some("no socket".into()));
        assert_eq!(get_text(&router, "/readyz").await, (500, "cache: not in sync\nruntime: no socket\n".into()));
        broken.store(false, Ordering::SeqCst);
        assert_eq!(get_text(&router, "/readyz").await, (500, "runtime: no socket\n".into()));
        assert_eq!(get_text(&router, "/healthz").await.0, 200);
    }

    #[tokio::test]
    async fn metrics_are_served() {
        let (status, text) = get_text(&metrics(Arc::new(Metrics::default())), "/metrics").await;
        assert_eq!(status, 200);
        assert!(text.ends_with("# EOF\n"));
    }

    #[tokio::test]
    async fn addresses_are_those_that_go_programs_take() {
        assert!(listen("0").await.unwrap().is_none());
        assert!(listen("").await.unwrap().is_none());
        for good in [":0", "127.0.0.1:0"] {
            assert!(listen(good).await.unwrap().is_some(), "{good}");
        }
        for bad in ["8080", "localhost:x", ":99999"] {
            let error = listen(bad).await.unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
        // The port of a listener that is gone may be anybody's, so this one stays. Only who tries its port fails.
        let first = listen("127.0.0.1:0").await.unwrap().unwrap();
        let taken = first.local_addr().unwrap().to_string();
        let error = listen(&taken).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot listen on {taken}")), "{error}");
    }
}
