package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

// writeImage writes an OCI archive (image-spec 1.1) of one layer that holds one static program, as /bin/<name>. People make theirs with
// docker, podman or buildah.
func writeImage(path, program, name string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := tarOf([]file{{"bin/" + name, 0o755, data}})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": []string{"/bin/" + name}, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return err
	}
	const oci = "application/vnd.oci.image."
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json",
		"config": descriptor(oci+"config.v1+json", config), "layers": []any{descriptor(oci+"layer.v1.tar", layer)},
	})
	if err != nil {
		return err
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{descriptor(oci+"manifest.v1+json", manifest)}})
	if err != nil {
		return err
	}
	files := []file{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", 0o644, index}}
	for _, blob := range [][]byte{manifest, config, layer} {
		files = append(files, file{"blobs/sha256/" + digest(blob)[len("sha256:"):], 0o644, blob})
	}
	archive, err := tarOf(files)
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o600)
}

// file is a file in a tar.
type file struct {
	name string
	mode int64
	data []byte
}

func tarOf(files []file) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.name, err)
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	return b.Bytes(), t.Close()
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func descriptor(mediaType string, b []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": digest(b), "size": len(b)}
}
