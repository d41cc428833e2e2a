{{- /* Written by `make manifests` from the program's own tables; changes here are overwritten. */}}
{{- define "kruise-rs.runtimes" }}
containerd:
  host:
    path: /run/containerd
    type: Directory
  inside: /hostvarrun/containerd
cri-dockerd:
  host:
    path: /run/cri-dockerd.sock
    type: Socket
  inside: /hostvarrun/cri-dockerd.sock
crio:
  host:
    path: /run/crio
    type: Directory
  inside: /hostvarrun/crio
k3s:
  host:
    path: /run/k3s/containerd
    type: Directory
  inside: /hostvarrun/k3s/containerd
{{- end }}
