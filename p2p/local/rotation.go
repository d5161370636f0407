package local

// AccountRotation is what `identity rotate --account` prints.
type AccountRotation struct {
	Account string    `json:"account" doc:"it keeps its name"`
	Changes int       `json:"changes" doc:"of its key so far"`
	Left    int       `json:"left" doc:"changes that it may still make"`
	Regrant []string  `json:"regrant" doc:"libp2p peer ids of linked devices that the new key must grant again"`
	Now     *Identity `json:"now,omitempty" doc:"who this PC is; none with --dry-run"`
}
