// Command render is the job that the demo rents a core for: it reads a scene, traces light through it on all cores that it may use, and
// writes a picture. It knows nothing of gpufair: any program that reads /in and writes /out could stand here.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// stats is what the job says of itself, in stats.json.
type stats struct {
	Width   int     `json:"width"`
	Height  int     `json:"height"`
	Samples int     `json:"samples"` // per pixel
	Rays    uint64  `json:"rays"`
	Cores   int     `json:"cores"`
	Seconds float64 `json:"seconds"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: render SCENE.json FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(scenePath, out string) error {
	s, err := readScene(scenePath)
	if err != nil {
		return err
	}
	cores := runtime.GOMAXPROCS(0) // the runtime looks at the container's limits
	fmt.Printf("render: %d x %d pixels, %d paths each, %d things in the scene, on %d core(s)\n", s.Width, s.Height, s.Samples, len(s.Spheres)+1, cores)
	start := time.Now()
	img, rays := s.render(cores, func(done, total int) {
		spent := time.Since(start)
		left := time.Duration(float64(spent) * float64(total-done) / float64(done))
		fmt.Printf("render: %3d %%, %.1f s, about %.0f s to go\n", 100*done/total, spent.Seconds(), left.Seconds())
	})
	spent := time.Since(start).Seconds()
	var picture bytes.Buffer
	if err := png.Encode(&picture, img); err != nil {
		return fmt.Errorf("encode the picture: %w", err)
	}
	text, err := json.MarshalIndent(stats{s.Width, s.Height, s.Samples, rays, cores, spent}, "", "  ")
	if err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(out, "picture.png"), picture.Bytes(), 0o644),
		os.WriteFile(filepath.Join(out, "stats.json"), append(text, '\n'), 0o644),
	)
	if err != nil {
		return err
	}
	fmt.Printf("render: %.1f million rays in %.1f s; picture.png has %d KiB\n", float64(rays)/1e6, spent, picture.Len()>>10)
	return nil
}
