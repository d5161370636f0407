package fetch

// hub is Docker Hub as images name it, and hubAPI where it serves its API.
const (
	hub    = "docker.io"
	hubAPI = "registry-1.docker.io"
)

// Known are the registries that an owner pulls from unless the settings say otherwise: those of Docker, GitHub, Red Hat and NVIDIA, which
// renters' images come from.
func Known() []string { return []string{hub, "ghcr.io", "quay.io", "nvcr.io"} }
