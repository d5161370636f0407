package main

import (
	"bytes"
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// small is the demo's own scene, made small.
func small(t *testing.T) *scene {
	t.Helper()
	s, err := readScene("../scene.json")
	if err != nil {
		t.Fatal(err)
	}
	s.Width, s.Height, s.Samples = 36, 24, 4
	return s
}

func TestPictureDoesNotDependOnCores(t *testing.T) {
	told := 0
	one, rays := small(t).render(1, func(done, total int) { told = done })
	three, again := small(t).render(3, func(int, int) {})
	if !bytes.Equal(one.Pix, three.Pix) || rays != again {
		t.Error("one core and three make two pictures")
	}
	if told != 24 || rays < 36*24*4 {
		t.Errorf("%d rows told, %d rays", told, rays)
	}
	colours := map[[3]byte]bool{}
	for i := 0; i < len(one.Pix); i += 4 {
		colours[[3]byte(one.Pix[i:i+3])] = true
	}
	if len(colours) < 100 {
		t.Errorf("%d colours: that is no picture", len(colours))
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "scene.json")
	for says, text := range map[string]string{
		"": `{"width":8,"height":4,"samples":1,"view":40,"eye":[0,1,3],"sun":[0,1,0]}`, "pixels": `{}`,
		"samples": `{"width":8,"height":4}`, "invalid character": `x`, "more than": strings.Repeat(" ", maxScene+1),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := run(path, dir)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%.20s: %v, want %q", text, err, says)
		}
	}
	f, err := os.Open(filepath.Join(dir, "picture.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if img, err := png.Decode(f); err != nil || img.Bounds().Dx() != 8 {
		t.Error(err)
	}
	var s stats
	data, err := os.ReadFile(filepath.Join(dir, "stats.json"))
	if err := json.Unmarshal(data, &s); err != nil || s.Rays == 0 || s.Cores == 0 {
		t.Errorf("%+v: %v", s, err)
	}
	if err != nil || run(filepath.Join(dir, "absent"), dir) == nil {
		t.Error(err)
	}
}
